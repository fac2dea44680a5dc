"""Numbered files in one name: shards-{000..012}.tar."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST = 1_000_000


def path_exists(path: Path) -> bool:
    """Whether a path, or every file that its braces stand for, is there."""
    return path.exists() or all(each.exists() for each in expand_braces(path))


def expand_braces(path: Path) -> list[Path]:
    """The paths that {first..last} stands for, in order; the path itself without braces.

    Numbers have as many digits as the first one is written with: {000..012}.
    """
    text = str(path)
    ranges = [
        [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        for first, last in _RANGE.findall(text)
        if int(last) - int(first) < MOST
    ]
    pieces = _RANGE.sub("\0", text).split("\0")
    if len(pieces) != len(ranges) + 1:
        return [path]
    return [
        Path("".join(a + b for a, b in zip(pieces, [*numbers, ""], strict=True)))
        for numbers in product(*ranges)
    ]
