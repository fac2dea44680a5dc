"""What a page or a figure shows for the items of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Items:
    """N captions and, where the modality has them, N pictures or N drawings."""

    captions: list[str]
    pictures: Iterable[Tensor] | None = None
    """(3, h, w) uint8 each, read when iterated over."""
    drawings: list[str | None] | None = None
    """SVG documents; None for an item that cannot be drawn."""
