"""Thumbnails of images, joined to one sheet that is embedded in the page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageOps
from torch import Tensor

SIDES = (72, 56, 40, 32, 24, 16)
"""Sides of a thumbnail in pixels, tried in this order until the sheet fits. Pictures that are
smaller than the first keep their own size where they can."""

SHEET_BYTES = 7_000_000
"""Size of the sheet before base64, which adds a third: keeps a page under 15 MB."""

MIN_JPEG_SIDE = 24
"""Side from which thumbnails are JPEG, whose blocks of 8 pixels blur smaller ones; else PNG."""


@dataclass(frozen=True)
class Sheet:
    """Thumbnails in rows; number i is in column i mod `columns`."""

    url: str
    """The sheet as a data URL."""
    columns: int
    rows: int
    side: int
    """Side of a thumbnail in pixels."""


def sheet_of(images: Iterable[Tensor], most_bytes: int = SHEET_BYTES) -> Sheet:
    """(3, h, w) uint8 images, cropped to their central squares, on the largest sheet that fits."""
    pictures = [_square(image) for image in images]
    largest = max(picture.width for picture in pictures)
    for side in (largest, *(side for side in SIDES if side < largest)):
        sheet = _sheet(pictures, side)
        encoded, kind = _encoded(sheet, side)
        if len(encoded) <= most_bytes:
            break
    url = f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"
    return Sheet(url, sheet.width // side, sheet.height // side, side)


def _square(image: Tensor) -> Image.Image:
    """The central square, no larger than any thumbnail: thousands are held at once."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    side = min(*picture.size, SIDES[0])
    return ImageOps.fit(picture, (side, side), Image.Resampling.LANCZOS)


def _sheet(pictures: Sequence[Image.Image], side: int) -> Image.Image:
    columns = math.ceil(math.sqrt(len(pictures)))
    sheet = Image.new("RGB", (columns * side, -(-len(pictures) // columns) * side))
    for number, picture in enumerate(pictures):
        place = (number % columns * side, number // columns * side)
        sheet.paste(picture.resize((side, side), Image.Resampling.LANCZOS), place)
    return sheet


def _encoded(sheet: Image.Image, side: int) -> tuple[bytes, str]:
    out = io.BytesIO()
    if side < MIN_JPEG_SIDE:
        sheet.save(out, "PNG", optimize=True)
        return out.getvalue(), "png"
    sheet.save(out, "JPEG", quality=80)
    return out.getvalue(), "jpeg"
