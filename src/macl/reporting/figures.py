"""Figures as PNG and PDF files, for papers and slides."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from macl.core.files import atomic_write
from macl.core.shown import one_line


class Drawable(Protocol):
    """A part of a report that is also a figure."""

    @property
    def key(self) -> str:
        """The name of the figure's files."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""

    def draw(self, axes: Axes) -> None:
        """Draw it by matplotlib."""


def write_figures(folder: Path, parts: Iterable[Drawable]) -> list[Path]:
    """NAME.png (200 dpi) and NAME.pdf of every part."""
    files = []
    for part in parts:
        figure = Figure(figsize=part.size, layout="constrained")
        part.draw(figure.subplots())
        files += save_figure(figure, folder, part.key, 200)
    return files


def save_figure(figure: Figure, folder: Path, name: str, dpi: int) -> list[Path]:
    """Write NAME.png and NAME.pdf."""
    files = {kind: folder / f"{name}.{kind}" for kind in ("png", "pdf")}
    for kind, file in files.items():
        atomic_write(file, partial(figure.savefig, format=kind, dpi=dpi))
    return [*files.values()]


def literal(name: str) -> str:
    """A name for matplotlib: without formulas, and shown even if it begins with an underscore."""
    text = one_line(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
