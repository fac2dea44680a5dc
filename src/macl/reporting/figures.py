"""Figures as PNG and PDF files, for papers and slides."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from macl.core.files import atomic_write
from macl.core.shown import one_line


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
