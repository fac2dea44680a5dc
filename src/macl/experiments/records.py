"""What a comparison records: its finished cells, and how often results were looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from macl.core.errors import UserError
from macl.core.files import atomic_write, write_text
from macl.experiments.compare import Cell, Finished, adaptive_setting, is_finished
from macl.experiments.rows import scores_of, training_figures
from macl.runs import Run

RECORDS = "cells.csv"


def recorded(file: Path, cells: Sequence[Cell], finished: Finished | None = None) -> Finished:
    """`finished`, after all finished cells are written to `file`, which is replaced as a whole."""
    import pandas as pd

    rows = {cell.folder: _row(cell) for cell in cells}

    def write() -> None:
        if known := list(filter(None, rows.values())):
            atomic_write(file, lambda target: pd.DataFrame(known).to_csv(target, index=False))

    def record(cell: Cell, ended: int, total: int) -> None:
        rows[cell.folder] = _row(cell)
        write()
        if finished is not None:
            finished(cell, ended, total)

    write()
    return record


def _row(cell: Cell) -> dict[str, object]:
    """The varied keys, seed and folder of a cell, its scores and figures; empty: not finished."""
    if not is_finished(cell):
        return {}
    run = Run(cell.folder)
    labels = {"seed": cell.seed, "run": cell.folder.name}
    return {**dict(cell.setting), **labels, **scores_of(run), **training_figures(run)}


LOOKS = "looks.json"


def record_look(folder: Path, seeds: int, settings: Sequence[Mapping[str, str]]) -> None:
    """Note a table with so many seeds, unless the last had as many, and its settings."""
    looks = read_looks(folder)
    if not looks or seeds > looks[-1]:
        looks.append(seeds)
    document = {"seeds_at_each_look": looks, "settings": [dict(each) for each in settings]}
    write_text(folder / LOOKS, json.dumps(document))


def require_same_grid(folder: Path, cells: Sequence[Cell]) -> None:
    """`UserError` where `folder` has the tables of settings that are not among these."""
    now = [dict(cell.setting) for cell in cells]
    for before in _read_document(folder).get("settings", []):
        if before not in now and not adaptive_setting(tuple(before.items())):
            text = ", ".join(f"{key}={value}" for key, value in before.items())
            raise UserError(
                f"{folder} has the tables of another comparison, with {text or 'no varied key'}. "
                "Choose another folder with `out=`, or vary over those values too."
            )


def read_looks(folder: Path) -> list[int]:
    """The number of seeds at each look; empty before the first."""
    return list(_read_document(folder).get("seeds_at_each_look", []))


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / LOOKS
    if not file.is_file():
        return {}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {**document, "seeds_at_each_look": [*map(int, document["seeds_at_each_look"])]}
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
