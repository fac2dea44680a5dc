"""Plausible mistakes in the Triton kernels, each with the case that must notice it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "macl.losses.kernels"


@dataclass(frozen=True)
class Mutant:
    """A plausible mistake: `old` → `new` in a source file, and the case that must notice it."""

    file: str
    old: str
    new: str
    case: str


MUTANTS = {
    "excluded logits filled with 0": Mutant(
        "triton_forward.py", 'logit, float("-inf"))', "logit, 0.0)", "ragged"
    ),
    "columns past the end count, forward": Mutant(
        "triton_tiles.py", "(j < m)[None, :] & ", "(j >= 0)[None, :] & ", "ragged"
    ),
    "weights not masked": Mutant(
        "triton_backward.py", "tl.where(keep, weights, 0.0)", "weights", "opposite"
    ),
    "diagonals of the wrong sign": Mutant(
        "triton_tiles.py", "!= diagonals[d]", "!= -diagonals[d]", "grouped"
    ),
    "NaN taken for no entry": Mutant(
        "triton_forward.py", "total == 0,", "(total > 0) == 0,", "special_rows"
    ),
    "sum not rescaled to the new maximum": Mutant(
        "triton_forward.py", "total * tl.exp2(peak - centre)", "total", "cold"
    ),
    "groups inverted": Mutant(
        "triton_tiles.py", "same if ONLY_GROUPS else same == 0", "same", "grouped"
    ),
    "groups cut to 32 bits": Mutant(
        "triton_tiles.py",
        "left[:, None] == right[None, :]",
        "left.to(tl.int32)[:, None] == right.to(tl.int32)[None, :]",
        "only_groups",
    ),
    "offset of the wrong sign": Mutant(
        "triton_forward.py", "x = per_entry(offset", "x = -per_entry(offset", "softplus"
    ),
    "logarithm instead of log1p": Mutant(
        "triton_tiles.py", "2 * artanh_series(y / (2 + y))", "tl.log(1 + y)", "softplus"
    ),
    "every part takes the first components": Mutant(
        "triton_backward.py", "m - left, part, D", "m - left, 0, D", "wide"
    ),
    "slope of the columns' temperature missing": Mutant(
        "triton_backward.py", "weights = weights * slope", "weights = weights", "per_row"
    ),
    "rows of zeros divided by 0": Mutant(
        "triton_rows.py", "largest > TINY, largest", "largest >= 0, largest", "row_kernels"
    ),
    "positives of the second view's anchors": Mutant(
        "triton_rows.py", "tl.where(i < n, i, i - n)", "tl.where(i < n, i, 0)", "row_kernels"
    ),
    "gradient along the row is kept": Mutant(
        "triton_rows.py", "(g2 - u2 * along2[:, None])", "g2", "row_kernels"
    ),
    "second view's anchors do not pull": Mutant(
        "triton_rows.py",
        "if SYMMETRIC:\n        weight",
        "if False:\n        weight",
        "row_kernels",
    ),
    "slope of softplus is 1": Mutant(
        "triton_rows.py", "slope = scale", "slope = slope", "row_kernels"
    ),
    "inputs not rounded": Mutant("triton_tiles.py", "high - (high - x)", "x", "tf32"),
}


def mutated(mutant: Mutant, name: str, folder: Path) -> Any:
    """The package of kernels once more under another name, with the mistake in it."""
    source = Path(importlib.import_module(f"{PACKAGE}.triton").__file__ or "").parent
    (folder / name).mkdir()
    for path in source.glob("triton*.py"):
        text = path.read_text()
        if path.name == mutant.file:
            assert mutant.old in text, f"{mutant.file} no longer contains {mutant.old!r}"
            text = text.replace(mutant.old, mutant.new)
        (folder / name / path.name).write_text(text.replace(PACKAGE, name))
    return importlib.import_module(f"{name}.triton")
