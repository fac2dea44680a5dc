"""A few pictures with captions, written to disk."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COLORS = {
    "red": (220, 30, 30),
    "green": (30, 200, 30),
    "blue": (30, 30, 220),
    "yellow": (220, 220, 30),
    "white": (250, 250, 250),
    "black": (5, 5, 5),
    "pink": (250, 120, 180),
    "brown": (120, 70, 20),
    "orange": (240, 140, 20),
    "purple": (120, 30, 160),
}


def picture(path: Path, color: str, number: int) -> None:
    """A noisy square of one color."""
    noise = np.random.default_rng(number).integers(-5, 6, (12, 12, 3))
    pixels = np.clip(np.array(COLORS[color]) + noise, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """A .csv file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def color_pairs(folder: Path, each: int = 4) -> Path:
    """captions.csv with `each` pictures of ten colors: file, caption, concept, label, split."""
    rows = []
    for color in COLORS:
        for number in range(each):
            file = f"images/{color}{number}.png"
            picture(folder / file, color, number)
            split = "test" if number == each - 1 else "train"
            rows.append([file, f"a {color} square", color, color, split])
    header = ["file", "caption", "concept", "label", "split"]
    return write_table(folder / "captions.csv", header, rows)
