"""What an item of each modality looks like on the page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass
from typing import Any

from macl.modalities.base import Modality
from macl.reporting.map import EmbeddingMap
from macl.reporting.thumbnails import Sheet, sheet_of

LONGEST_CAPTION = 400
"""Characters of a sentence or a name: enough to know it by."""

DRAWING_BYTES = 8_000_000
"""Of all drawings, deflated and before base64, which adds a third: a page stays under 15 MB."""


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

    def packed_drawings(self) -> str | None:
        """The drawings as JSON, deflated, base64."""
        return None if self.drawings is None else base64.b64encode(_packed(self.drawings)).decode()

    def drawing_url(self, number: int) -> str | None:
        """One drawing as a data URL. Inside <img> nothing in an SVG can run or reach out."""
        svg = None if self.drawings is None else self.drawings[number]
        if svg is None:
            return None
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def looks(modality: Modality[Any, Any, Any, Any], shown: EmbeddingMap) -> Looks:
    """Captions, and pictures or drawings where the modality has them."""
    items = modality.describe_items(shown.dataset, shown.indices)
    captions = [_cut(caption) for caption in items.captions]
    if items.pictures is not None:
        return Looks(captions, sheet=sheet_of(items.pictures))
    if items.drawings is not None:
        return Looks(captions, drawings=fitting(items.drawings))
    return Looks(captions)


def fitting(drawings: list[str | None], most_bytes: int = DRAWING_BYTES) -> list[str | None]:
    """All of them, or every second, third, …: so many that they pack into about `most_bytes`."""
    stride = math.ceil(len(_packed(drawings)) / most_bytes)
    return [svg if number % stride == 0 else None for number, svg in enumerate(drawings)]


def _packed(drawings: list[str | None]) -> bytes:
    """SVGs repeat themselves: deflated they shrink tenfold, and browsers inflate by themselves."""
    return zlib.compress(json.dumps(drawings).encode())


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CAPTION else f"{text[: LONGEST_CAPTION - 1]}…"
