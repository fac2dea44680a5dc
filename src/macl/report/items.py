"""What an item of each modality looks like on the page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass

from macl.core.progress import track
from macl.report.drawings import graph_drawings, molecule_drawings
from macl.report.map import EmbeddingMap
from macl.report.thumbnails import Sheet, sheet_of

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


def looks(modality: str, shown: EmbeddingMap) -> Looks:
    """Pictures, formulas, node-link drawings, or the words themselves."""
    captions = [_cut(name) for name in shown.names]
    if modality == "images":
        pictures = (shown.dataset[i] for i in shown.indices)
        return Looks(captions, sheet=sheet_of(track(pictures, "thumbnails", len(shown))))
    if modality == "molecules":
        return Looks(captions, drawings=fitting(molecule_drawings(shown.names)))
    if modality == "graphs":
        drawings, sizes = graph_drawings(shown.dataset, shown.indices)
        described = [f"{c}: {size}" for c, size in zip(captions, sizes, strict=True)]
        return Looks(described, drawings=fitting(drawings))
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
