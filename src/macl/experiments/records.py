"""cells.csv: one row per finished cell, written as each one finishes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from macl.core.files import atomic_write
from macl.experiments.compare import Cell, is_finished
from macl.experiments.rows import scores_of, training_figures
from macl.runs import Run

RECORDS = "cells.csv"


class CellRecords:
    """The rows of a comparison's finished cells, in the order of the cells.

    Columns are the varied keys, seed, run (its folder's name), the scores, then the figures of the
    training; empty where a run has no such number. The file is replaced as a whole, so a reader
    never sees half a row, and one that was lost is written again by the same command.
    """

    def __init__(self, file: Path, cells: Sequence[Cell]) -> None:
        self.file = file
        self._order = [cell.folder for cell in cells]
        self._rows = {cell.folder: _row(cell) for cell in cells if is_finished(cell)}
        if self._rows:
            self._write()

    def add(self, cell: Cell) -> None:
        """Add the row of a cell, if it is finished."""
        if is_finished(cell):
            self._rows[cell.folder] = _row(cell)
            self._write()

    def _write(self) -> None:
        rows = [self._rows[folder] for folder in self._order if folder in self._rows]
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [*columns])
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(self.file, lambda file: file.write(text.getvalue().encode()))


def _row(cell: Cell) -> dict[str, object]:
    run = Run(cell.folder)
    labels = {"seed": cell.seed, "run": cell.folder.name}
    return {**dict(cell.setting), **labels, **scores_of(run), **training_figures(run)}
