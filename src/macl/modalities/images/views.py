"""Two random views of a batch of images, made on the device that holds the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.images.augment import (
    centre_crop,
    colour_map,
    gaussian_blur,
    grey_matrix,
    jitter_colours,
    resized_crop,
)
from macl.modalities.images.batch import ImageBatch
from macl.modalities.images.presets import Augmentation
from macl.modalities.images.sections import ImageViewsConfig
from macl.modalities.protocols import Views

CROP_ATTEMPTS = 10
"""How often a crop that does not fit is drawn again before the central one is taken."""

EVALUATION_MARGIN = 256 / 224
"""Short side over output side in the central crop by which ImageNet is evaluated."""

CACHE_ELEMENTS = 2**20
"""Floats per slice of work on a CPU: what stays in cache between one operation and the next."""


class Draw(NamedTuple):
    """The random parameters of one view of a batch of B images."""

    boxes: Tensor
    """(B, 4) int64, (top, left, height, width) of the crop."""
    flip: Tensor
    """(B,) bool."""
    factors: Tensor
    """(B, 4): brightness, contrast, saturation, hue; (1, 1, 1, 0) where nothing is jittered."""
    order: Tensor
    """(B, 4) int64, the order of the four."""
    grey: Tensor
    """(B,) bool."""
    blur: Tensor
    """(B,) bool."""
    sigma: Tensor
    """(B,), the blur's standard deviation in pixels of the output."""

    def rows(self, rows: slice) -> Draw:
        """The parameters of some of the images."""
        return Draw(*(parameter[rows] for parameter in self))


def draw_boxes(sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Random crops as torchvision's `RandomResizedCrop` draws them: (B, 2) → (B, 4) int64.

    Area uniform in `scale`, width over height log-uniform in `ratio`, drawn until the crop fits;
    after ten failures, the largest central crop whose ratio is allowed.
    """
    count, device = len(sizes), sizes.device
    full = sizes.float()
    area = full.prod(dim=1, keepdim=True) * _uniform((count, CROP_ATTEMPTS), scale, device)
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    aspect = _uniform((count, CROP_ATTEMPTS), log_ratio, device).exp()
    attempts = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], dim=2).round()
    fits = ((attempts >= 1) & (attempts <= full.unsqueeze(1))).all(dim=2)
    chosen = attempts[torch.arange(count, device=device), fits.int().argmax(dim=1)]

    height, width = full.unbind(dim=1)
    largest = torch.stack([(width / ratio[0]).round(), (height * ratio[1]).round()], dim=1)
    fallback = torch.minimum(full, largest.clamp(min=1))

    found = fits.any(dim=1, keepdim=True)
    extent = torch.where(found, chosen, fallback)
    free = full - extent
    anywhere = (torch.rand(count, 2, device=device) * (free + 1)).floor().minimum(free)
    corner = torch.where(found, anywhere, (free / 2).floor())
    return torch.cat([corner, extent], dim=1).long()


def draw_view(sizes: Tensor, settings: Augmentation) -> Draw:
    """Draw the parameters of one view of images of the given true sizes, (B, 2)."""
    count, device = len(sizes), sizes.device
    ranges = [(max(0.0, 1 - strength), 1 + strength) for strength in settings.jitter[:3]]
    ranges.append((-settings.jitter[3], settings.jitter[3]))
    factors = torch.stack([_uniform((count,), limits, device) for limits in ranges], dim=1)
    unchanged = torch.tensor([1.0, 1.0, 1.0, 0.0], device=device)
    jittered = _chance(count, settings.jitter_p, device).view(-1, 1)
    return Draw(
        boxes=draw_boxes(sizes, settings.crop_scale, settings.crop_ratio),
        flip=_chance(count, settings.flip, device),
        factors=torch.where(jittered, factors, unchanged),
        order=torch.rand(count, 4, device=device).argsort(dim=1),
        grey=_chance(count, settings.grey_p, device),
        blur=_chance(count, settings.blur_p, device),
        sigma=_uniform((count,), settings.blur_sigma, device),
    )


class ImageViews(Views):
    """SimCLR's augmentations for whole batches; float32, normalised, (B, 3, size, size)."""

    def __init__(self, config: ImageViewsConfig) -> None:
        self.settings = config.resolve()

    def __call__(self, inputs: ImageBatch) -> tuple[Tensor, Tensor]:
        """Two views of every image, drawn independently of each other and of other images."""
        one, two = self.draw(inputs, 2)
        return one, two

    def draw(self, inputs: ImageBatch, count: int) -> list[Tensor]:
        """`count` independent random views of every image."""
        size = self._output_size(inputs)
        draws = [draw_view(inputs.sizes, self.settings) for _ in range(count)]
        views = [_empty(inputs, size) for _ in range(count)]
        with _full_precision(inputs):
            for rows, x in _slices(inputs, size):
                for view, draw in zip(views, draws, strict=True):
                    view[rows] = self.apply(x, draw.rows(rows), size)
        return views

    def plain(self, inputs: ImageBatch) -> Tensor:
        """The view for evaluation: the whole image, or its centre for the preset `imagenet`."""
        size = self._output_size(inputs)
        view = _empty(inputs, size)
        never = torch.zeros_like(inputs.sizes[:, 0], dtype=torch.bool)
        with _full_precision(inputs):
            for rows, x in _slices(inputs, size):
                sizes = inputs.sizes[rows]
                if self.settings.centre_crop:
                    x = centre_crop(x, sizes, round(size * EVALUATION_MARGIN), size)
                else:
                    boxes = torch.cat([torch.zeros_like(sizes), sizes], dim=1)
                    x = resized_crop(x, boxes, size, never[rows])
                view[rows] = self._normalise(x.mT, never[rows]).mT
        return view

    def apply(self, x: Tensor, draw: Draw, size: int) -> Tensor:
        """One view, (B, 3, size, size), of (B, 3, H, W) in [0, 1], by parameters already drawn."""
        # The crop comes out column by column. Colours and a round blur do not care, so the
        # view is turned back only when it is written to its place.
        x = resized_crop(x, draw.boxes, size, draw.flip).mT
        if self.settings.jitter_p > 0:
            x = jitter_colours(x, draw.factors, draw.order)
        # Blur mixes pixels with weights that sum to one, so it commutes with the colour map that
        # turns to grey and normalises; the two are thus one product.
        x = self._normalise(x, draw.grey)
        rows = draw.blur.nonzero().squeeze(1)
        if len(rows):
            blurred = gaussian_blur(x.index_select(0, rows), draw.sigma[rows], blur_kernel(size))
            x.index_copy_(0, rows, blurred)
        return x.mT

    def _normalise(self, x: Tensor, grey: Tensor) -> Tensor:
        std = torch.tensor(self.settings.std, device=x.device)
        bias = -torch.tensor(self.settings.mean, device=x.device) / std
        return colour_map(x, grey_matrix(grey.float()) / std.view(3, 1), bias.expand(len(x), 3))

    def _output_size(self, inputs: ImageBatch) -> int:
        if self.settings.size is not None:
            return self.settings.size
        height, width = inputs.pixels.shape[-2:]
        if height != width or bool((inputs.sizes != height).any()):
            raise UserError(
                "The images are not all squares of one size, so the views need a size of their "
                "own: set views.size, for example views.size=32."
            )
        return int(height)


def blur_kernel(size: int) -> int:
    """SimCLR's rule: a tenth of the image's side, made odd."""
    return 2 * (size // 20) + 1


@contextmanager
def _full_precision(inputs: ImageBatch) -> Iterator[None]:
    """No gradients, and no half precision: autocast would take the colour products for layers."""
    with torch.no_grad(), torch.autocast(inputs.pixels.device.type, enabled=False):
        yield


def _empty(inputs: ImageBatch, size: int) -> Tensor:
    shape = (len(inputs.pixels), 3, size, size)
    return inputs.pixels.new_empty(shape, dtype=torch.float32)


def _slices(inputs: ImageBatch, size: int) -> Iterator[tuple[slice, Tensor]]:
    """The batch in slices, as float in [0, 1]; small ones on a CPU, one on an accelerator."""
    pixels = inputs.pixels
    count = len(pixels)
    if pixels.device.type == "cpu":
        largest = 3 * max(pixels.shape[-1] * pixels.shape[-2], size * size)
        count = max(1, CACHE_ELEMENTS // largest)
    for start in range(0, len(pixels), count):
        rows = slice(start, start + count)
        yield rows, pixels[rows].float().div_(255)


def _uniform(shape: tuple[int, ...], limits: tuple[float, float], device: torch.device) -> Tensor:
    low, high = limits
    return low + (high - low) * torch.rand(shape, device=device)


def _chance(count: int, probability: float, device: torch.device) -> Tensor:
    return torch.rand(count, device=device) < probability
