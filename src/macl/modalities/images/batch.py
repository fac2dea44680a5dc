"""A batch of images of unequal sizes, as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ImageBatch(NamedTuple):
    """RGB images padded with zeros at the bottom and the right to the largest of the batch."""

    pixels: Tensor
    """(B, 3, H, W) uint8."""

    sizes: Tensor
    """(B, 2) int64, the true (height, width) of each image: 1 ≤ height ≤ H, 1 ≤ width ≤ W."""

    @classmethod
    def of(cls, images: Sequence[Tensor]) -> ImageBatch:
        """Join (3, h, w) uint8 images, of equal or unequal sizes, into one batch."""
        sizes = torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64)
        height, width = sizes.amax(dim=0).tolist()
        pixels = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
        for row, image in zip(pixels, images, strict=True):
            row[:, : image.shape[-2], : image.shape[-1]] = image
        return cls(pixels, sizes)
