"""From an image file of any common kind to an RGB tensor, or to an error that names the file."""

from __future__ import annotations

import functools
import io
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from macl.core.errors import UserError
from macl.core.inside import require_regular
from macl.core.limits import check_limit

# Pillow trusts a file's content over its name, and some of its formats (EPS) start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")

SIGNED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF")
"""Those whose first bytes are not likely to begin another kind of file."""


@functools.cache
def extensions() -> frozenset[str]:
    """File name endings that count as images, in lower case and with their dot."""
    return frozenset(e for e, kind in Image.registered_extensions().items() if kind in FORMATS)


def is_image(path: Path) -> bool:
    """Whether a file is an image by its name or, with another name, by its first bytes."""
    if path.suffix.lower() in extensions():
        return True
    if not path.is_file():  # opening a pipe would wait for its other end
        return False
    try:
        with Image.open(path, formats=SIGNED_FORMATS):
            return True
    # Pillow raises nearly anything where the first bytes are those of a format, and no more.
    except Exception:
        return False


def decode(path: Path, max_side: int | None = None, data: bytes | None = None) -> Tensor:
    """Read an image file as it is meant to be seen: (3, h, w) uint8 RGB.

    EXIF rotation is applied; transparency is laid on white, the page that most cut-out pictures are
    drawn for; of 16 bits the upper 8 are kept; of an animation the first frame is taken. With
    `max_side` it is shrunk as by `shrink`. `data` is the content, where it is part of an archive;
    `path` then names it in messages.
    """
    with _opened(path, data) as image:
        if max_side is not None:
            # JPEG can decode at 1/2, 1/4 or 1/8 size; from twice the target shrink() does well.
            scale = min(1.0, 2 * max_side / min(image.size))
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        pixels = np.array(_to_rgb(ImageOps.exif_transpose(image)))
    return shrink(torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), max_side)


def check(path: Path, data: bytes | None = None) -> None:
    """Raise `UserError` if `path` is not a whole, readable image; cheaper than decoding it.

    PNG carries checksums and JPEG an end marker; only a file with neither is decoded in full.
    """
    with _opened(path, data) as image:
        if image.format == "PNG":
            image.verify()
        elif image.format != "JPEG" or not _ends_like_jpeg(image.fp):
            image.load()


def shrink(pixels: Tensor, max_side: int | None) -> Tensor:
    """Scale (..., h, w) uint8 down, antialiased, until the shorter side is at most `max_side`."""
    if max_side is None or min(pixels.shape[-2:]) <= max_side:
        return pixels
    return transforms.resize(pixels, [max_side], antialias=True)


@contextmanager
def _opened(path: Path, data: bytes | None) -> Iterator[ImageFile.ImageFile]:
    """Open lazily; whatever goes wrong until the block ends becomes a `UserError` about `path`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if data is None:
                require_regular(path)
            source = path if data is None else io.BytesIO(data)
            with Image.open(source, formats=FORMATS) as image:
                # A line of a picture has a cost of its own, however short it is.
                check_limit("side", max(image.size), f"image {path}: pixels along a side")
                check_limit("pixels", math.prod(image.size), f"image {path}: pixels")
                yield image
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"image {path} is refused: {error} Shrink it first.") from error
    # A broken file can make Pillow raise nearly anything: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UserError(f"image {path} cannot be read: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":  # Pillow's modes with more than 8 bits
        values = np.asarray(image)
        if values.dtype.kind == "f" or values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("32-bit pixels have no known range; save as 8 or 16 bit")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _ends_like_jpeg(file: Any) -> bool:
    """Whether the end-of-image marker closes the file; padding may follow it."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
    return file.read().rstrip(b"\0\r\n").endswith(b"\xff\xd9")


class ImageBatch(NamedTuple):
    """Images padded with zeros at the bottom and the right to the largest of the batch."""

    pixels: Tensor
    """(B, C, H, W) uint8."""
    sizes: Tensor
    """(B, 2) int64, the true (height, width) of each image: 1 ≤ height ≤ H, 1 ≤ width ≤ W."""

    @classmethod
    def of(cls, images: Sequence[Tensor]) -> ImageBatch:
        """Join (C, h, w) uint8 images, of equal or unequal sizes, into one batch."""
        sizes = torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64)
        height, width = sizes.amax(dim=0).tolist()
        pixels = torch.zeros(len(images), len(images[0]), height, width, dtype=torch.uint8)
        for row, image in zip(pixels, images, strict=True):
            row[:, : image.shape[-2], : image.shape[-1]] = image
        return cls(pixels, sizes)
