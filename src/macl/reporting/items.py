"""What an item of each modality looks like on the page."""

from __future__ import annotations

import base64
import io
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageOps
from torch import Tensor

from macl.modalities.base import Modality
from macl.modalities.protocols import Dataset

LONGEST_CAPTION = 400
"""Characters of a sentence or a name: enough to know it by."""

DRAWING_BYTES = 8_000_000
"""Of all drawings, deflated and before base64, which adds a third: a page stays under 15 MB."""

SHEET_BYTES = 7_000_000
"""Size of the sheet before base64."""

SIDES = (72, 56, 40, 32, 24, 16)
"""Sides of a thumbnail in pixels, tried in this order until the sheet fits. Images that are
smaller than the first keep their own size where they can."""

MIN_JPEG_SIDE = 24
"""Side from which thumbnails are JPEG, whose blocks of 8 pixels blur smaller ones; else PNG."""


@dataclass(frozen=True)
class Sheet:
    """Thumbnails joined to one image; number i is in column i mod `columns`."""

    url: str
    columns: int
    rows: int
    side: int
    """Side of a thumbnail in pixels."""


@dataclass(frozen=True)
class Looks:
    """N captions and, for what can be seen, thumbnails on a sheet or one SVG each."""

    captions: list[str]
    sheet: Sheet | None = None
    drawings: list[str | None] | None = None

    @property
    def undrawn(self) -> int:
        """How many items have no drawing where others have."""
        return 0 if self.drawings is None else self.drawings.count(None)

    def thumb_style(self, number: int) -> str:
        """The position of a thumbnail on the sheet, as CSS percentages, valid at any size."""
        assert self.sheet is not None
        y, x = divmod(number, self.sheet.columns)
        across, down = max(1, self.sheet.columns - 1), max(1, self.sheet.rows - 1)
        return f"{100 * x / across:.4f}% {100 * y / down:.4f}%"

    def packed_drawings(self) -> str | None:
        """The drawings as JSON, deflated, base64."""
        return None if self.drawings is None else base64.b64encode(_packed(self.drawings)).decode()

    def drawing_url(self, number: int) -> str | None:
        """One drawing as a data URL. Inside <img> nothing in an SVG can run or reach out."""
        svg = None if self.drawings is None else self.drawings[number]
        return None if svg is None else _data_url("svg+xml", svg.encode())


def looks(modality: Modality, dataset: Dataset, indices: Sequence[int]) -> Looks:
    """Captions, and thumbnails or drawings where the modality has them."""
    items = modality.describe_items(dataset, indices)
    captions = [
        text if len(text) <= LONGEST_CAPTION else f"{text[: LONGEST_CAPTION - 1]}…"
        for text in items.captions
    ]
    if items.pictures is not None:
        return Looks(captions, sheet=sheet_of(items.pictures))
    return Looks(captions, drawings=None if items.drawings is None else fitting(items.drawings))


def fitting(drawings: list[str | None], most_bytes: int = DRAWING_BYTES) -> list[str | None]:
    """All of them, or every second, third, …: so many that they pack into about `most_bytes`."""
    stride = math.ceil(len(_packed(drawings)) / most_bytes)
    return [svg if number % stride == 0 else None for number, svg in enumerate(drawings)]


def sheet_of(images: Iterable[Tensor], most_bytes: int = SHEET_BYTES) -> Sheet:
    """(3, h, w) uint8 images, cropped to their central squares, on the largest sheet that fits."""
    squares = [square_thumbnail(image) for image in images]
    largest = max(square.width for square in squares)
    columns = math.ceil(math.sqrt(len(squares)))
    rows = math.ceil(len(squares) / columns)
    for side in (largest, *(side for side in SIDES if side < largest)):
        sheet, out = Image.new("RGB", (columns * side, rows * side)), io.BytesIO()
        for number, square in enumerate(squares):
            place = (number % columns * side, number // columns * side)
            sheet.paste(square.resize((side, side), Image.Resampling.LANCZOS), place)
        kind = "jpeg" if side >= MIN_JPEG_SIDE else "png"
        sheet.save(out, kind, optimize=kind == "png", quality=80)
        if out.tell() <= most_bytes:
            break
    return Sheet(_data_url(kind, out.getvalue()), columns, rows, side)


def square_thumbnail(image: Tensor) -> Image.Image:
    """The central square, no larger than any thumbnail: thousands are held at once."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    side = min(*picture.size, SIDES[0])
    return ImageOps.fit(picture, (side, side), Image.Resampling.LANCZOS)


def _packed(drawings: list[str | None]) -> bytes:
    """SVGs repeat themselves: deflated they shrink tenfold, and browsers inflate by themselves."""
    return zlib.compress(json.dumps(drawings).encode())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
