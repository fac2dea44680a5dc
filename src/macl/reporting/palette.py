"""Colours that are distinct for any colour vision, and markers for more than ten classes."""

from __future__ import annotations

PALETTE = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6",
    "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff's ten (arXiv:2107.02270), found by a survey and a model of colour-vision deficiency."""

MARKERS = ("o", "s", "^", "D")
"""Names of matplotlib; the page draws the same shapes."""


def class_style(number: int) -> tuple[str, int]:
    """The colour and the marker of class `number`: ten colours, then the next marker."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % len(MARKERS)
