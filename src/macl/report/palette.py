"""Colours that people with any colour vision can tell apart, and marks for when they run out."""

from __future__ import annotations

PALETTE = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6",
    "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff's ten (arXiv:2107.02270), found by a survey and a model of colour-vision deficiency."""

MARKERS = ("o", "s", "^", "D")
"""In matplotlib's names; the page draws the same shapes."""


def look_of(number: int) -> tuple[str, int]:
    """Colour and mark of class `number`: ten colours, then the next mark."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % len(MARKERS)
