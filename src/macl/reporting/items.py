"""What an item of each modality looks like on the page."""

from __future__ import annotations

import base64
import io
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from PIL import Image, ImageOps
from torch import Tensor

from macl.modalities.base import Modality
from macl.modalities.protocols import Dataset

LONGEST_CAPTION = 400
"""Characters of a sentence or a name: enough to know it by."""

PICTURE_BYTES = 8_000_000
"""Of all pictures, deflated and before base64, which adds a third: a page stays under 15 MB."""

SIDES = (72, 56, 40, 32, 24, 16)
"""Sides of a thumbnail in pixels, tried in this order until all fit. Images that are smaller than
the first keep their own size where they can."""

MIN_JPEG_SIDE = 24
"""Side from which thumbnails are JPEG, whose blocks of 8 pixels blur smaller ones; else PNG."""


@dataclass(frozen=True)
class Looks:
    """N captions and, for what can be seen, N pictures."""

    captions: list[str]
    pictures: list[str | None] | None = None
    """Data URLs: inside <img> nothing in an SVG can run or reach out. None: not drawn."""
    style: Literal["texts", "thumb", "thumb coarse", "drawing"] = "texts"
    """CSS classes of the pictures."""

    @property
    def undrawn(self) -> int:
        """How many items have no picture where others have."""
        return 0 if self.pictures is None else self.pictures.count(None)

    def packed_pictures(self) -> str | None:
        """The pictures as JSON, deflated, base64."""
        return None if self.pictures is None else base64.b64encode(_packed(self.pictures)).decode()


def looks(modality: Modality, dataset: Dataset, indices: Sequence[int]) -> Looks:
    """Captions, and thumbnails or drawings where the modality has them."""
    items = modality.describe_items(dataset, indices)
    captions = [
        text if len(text) <= LONGEST_CAPTION else f"{text[: LONGEST_CAPTION - 1]}…"
        for text in items.captions
    ]
    if items.pictures is not None:
        return Looks(captions, *thumbnails(items.pictures))
    if items.drawings is not None:
        return Looks(captions, drawings(items.drawings), "drawing")
    return Looks(captions)


def drawings(svgs: Iterable[str | None], most_bytes: int = PICTURE_BYTES) -> list[str | None]:
    """URLs of all, or of every second, third, …: so many that they pack into `most_bytes`."""
    urls = [svg and f"data:image/svg+xml,{quote(svg)}" for svg in svgs]
    stride = math.ceil(len(_packed(urls)) / most_bytes)
    return [url if number % stride == 0 else None for number, url in enumerate(urls)]


def thumbnails(
    images: Iterable[Tensor], most_bytes: int = PICTURE_BYTES
) -> tuple[list[str | None], Literal["thumb", "thumb coarse"]]:
    """URLs of (3, h, w) uint8 images, cropped to their central squares, as large as fit; style."""
    squares = [square_thumbnail(image) for image in images]
    largest = max(square.width for square in squares)
    for side in (largest, *(side for side in SIDES if side < largest)):
        kind = "jpeg" if side >= MIN_JPEG_SIDE else "png"
        urls: list[str | None] = [_thumbnail_url(square, side, kind) for square in squares]
        if len(_packed(urls)) <= most_bytes:
            break
    return urls, "thumb" if kind == "jpeg" else "thumb coarse"


def square_thumbnail(image: Tensor) -> Image.Image:
    """The central square, no larger than any thumbnail: thousands are held at once."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    side = min(*picture.size, SIDES[0])
    return ImageOps.fit(picture, (side, side), Image.Resampling.LANCZOS)


def _thumbnail_url(square: Image.Image, side: int, kind: str) -> str:
    out = io.BytesIO()
    side = min(side, square.width)
    square.resize((side, side), Image.Resampling.LANCZOS).save(
        out, kind, optimize=kind == "png", quality=80
    )
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def _packed(urls: Sequence[str | None]) -> bytes:
    """SVGs and headers of JPEG files repeat themselves: deflated, a list shrinks up to tenfold."""
    return zlib.compress(json.dumps(urls).encode())
