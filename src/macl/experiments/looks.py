"""How often the results of a comparison were looked at: looks.json in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from macl.core.errors import UserError
from macl.core.files import atomic_write

LOOKS = "looks.json"


def record_look(folder: Path, seeds: int) -> list[int]:
    """Note that a table with `seeds` seeds is written; returns the seeds of all looks so far.

    A table with no more seeds than the last one shows nothing new and is no further look.
    """
    looks = read_looks(folder)
    if not looks or seeds > looks[-1]:
        looks.append(seeds)
        text = json.dumps({"seeds_at_each_look": looks})
        atomic_write(folder / LOOKS, lambda file: file.write(text.encode()))
    return looks


def read_looks(folder: Path) -> list[int]:
    """The number of seeds at each look; empty before the first."""
    file = folder / LOOKS
    if not file.is_file():
        return []
    try:
        looks = json.loads(file.read_text(encoding="utf-8"))["seeds_at_each_look"]
        return [int(seeds) for seeds in looks]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read ({error}). It counts the looks at this comparison: repair it, "
            "or remove it and count again."
        ) from error


def looks_text(looks: list[int]) -> str:
    """ "2 looks were taken: with 3 and 10 seeds.", as a line below a table."""
    if len(looks) < 2:
        return "One look was taken."
    *first, last = map(str, looks)
    return (
        f"{len(looks)} looks were taken: with {', '.join(first)} and {last} seeds. Verdicts are "
        "not corrected for that."
    )
