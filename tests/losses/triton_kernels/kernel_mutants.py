"""Plausible mistakes in the Triton kernels, each with the case that must notice it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "macl.losses.ops.triton"


class Mutant(NamedTuple):
    """A plausible mistake: `old` → `new` in the source, and the case that must notice it."""

    old: str
    new: str
    case: str


MUTANTS = {
    "excluded logits filled with 0": Mutant('logit, float("-inf"), i', "logit, 0.0, i", "ragged"),
    "columns past the end count": Mutant("(j < m)[None, :] & ", "(j >= 0)[None, :] & ", "ragged"),
    "the end of the matrix is not seen": Mutant(
        "touched = left + BN > m", "touched = left < 0", "ragged"
    ),
    "weights past the end are not masked": Mutant(
        "weights, 0.0, i, j, top, left, n, m,",
        "weights, 0.0, i, j, top, left, n, m + BN,",
        "opposite",
    ),
    "diagonals of the wrong sign": Mutant("!= diagonals[d]", "!= -diagonals[d]", "grouped"),
    "diagonals below the first row of a tile": Mutant(
        "left < top + BM + diagonals[d]", "left < top + diagonals[d]", "views"
    ),
    "NaN taken for no entry": Mutant(
        'total == 0, float("-inf")', '(total > 0) == 0, float("-inf")', "special_rows"
    ),
    "sum not rescaled to the new maximum": Mutant("total * before", "total", "cold"),
    "statistics not rescaled": Mutant("logits * before", "logits", "cold"),
    "squares not rescaled": Mutant("squares * before", "squares", "cold"),
    "groups inverted": Mutant("same if ONLY_GROUPS else same == 0", "same", "grouped"),
    "groups cut to 32 bits": Mutant(
        "mine[:, None] == theirs[None, :]",
        "mine.to(tl.int32)[:, None] == theirs.to(tl.int32)[None, :]",
        "only_groups",
    ),
    "logarithm instead of log1p": Mutant(
        "2 * artanh_series(y / (2 + y))", "tl.log(1 + y)", "softplus"
    ),
    "ratio of nothing to nothing": Mutant(
        "softplus(x) * (1 +", "softplus(x) * (0 +", "other_functions"
    ),
    "slope of the columns' temperature missing": Mutant(
        "weights = weights * slope", "weights = weights", "per_row"
    ),
    "every piece takes the first components": Mutant(
        "column_base, m - left, m, part, D", "column_base, m - left, m, 0, D", "wide"
    ),
    "the second chunk repeats the first": Mutant("m, part + DV,\n", "m, part,\n", "wide"),
    "the third chunk is not stored": Mutant(
        "part + 2 * DV, D, BM, DV)", "part, D, BM, DV)", "wide"
    ),
    "low part of the rows forgotten": Mutant(
        "sums = tl.dot(a_low, b, sums)", "sums = sums", "cold"
    ),
    "low part of the weights forgotten": Mutant(
        "(weights - high_part.to(tl.float32))", "(weights * 0)", "ragged"
    ),
    "weights not brought to the range of float16": Mutant(
        "LARGEST / tl.where(usable, most, 1.0)", "1.0", "small_and_large_weights"
    ),
    "slope of artanh not bounded": Mutant(
        "(1 + 0.5 * (tl.exp2(z) + tl.exp2(-z)))", "1.0", "artanh_at_one"
    ),
    "every split starts at the first column": Mutant(
        "first = tl.program_id(1) * span\n    i =",
        "first = tl.program_id(1) * 0\n    i =",
        "splits",
    ),
    "splits of the gradient overlap": Mutant(
        "last = tl.minimum(first + span, m)", "last = m", "splits"
    ),
}


def mutated(mutant: Mutant, name: str, folder: Path) -> Any:
    """The package of kernels once more under another name, with the mistake in it."""
    source = Path(importlib.import_module(f"{PACKAGE}.launch").__file__ or "").parent
    (folder / name).mkdir()
    for path in source.glob("*.py"):
        text = path.read_text()
        if path.name == "kernels.py":
            assert mutant.old in text, f"the kernels no longer contain {mutant.old!r}"
            text = text.replace(mutant.old, mutant.new)
        (folder / name / path.name).write_text(text.replace(PACKAGE, name))
    return importlib.import_module(f"{name}.launch")
