"""Comparisons on several machines: which cells are whose, and their runs brought together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from macl import recipes
from macl.core.errors import UserError
from macl.core.files import PARTIAL
from macl.experiments.compare import Cell, is_finished
from macl.experiments.controls import with_level_controls
from macl.experiments.outcome import Outcome
from macl.experiments.records import RECORDS, CellRecords
from macl.experiments.rows import scores_of, tabulate
from macl.experiments.tables import write_tables
from macl.recipes import Recipe, flatten
from macl.runs import Run

T = TypeVar("T")


class Shard(NamedTuple):
    """Part `number` of `parts`, counted from 1."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "2/4"."""
        number, slash, count = text.partition("/")
        if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
            raise UserError(f"--shard {text}: write I/N, such as 1/4 for the first of four parts.")
        shard = cls(int(number), int(count))
        if not 1 <= shard.number <= shard.parts:
            last = f"{shard.parts}/{shard.parts}"
            raise UserError(f"--shard {text}: the parts are 1/{shard.parts} to {last}.")
        return shard

    def of(self, items: Sequence[T]) -> list[T]:
        """Every `parts`-th item: with as many parts as seeds, each has one seed of all settings."""
        return list(items[self.number - 1 :: self.parts])

    @property
    def records_name(self) -> str:
        """The name of its cells.csv, so that parts may share a folder."""
        return f"cells-{self.number}-of-{self.parts}.csv"


def merge_and_tabulate(
    cells: Sequence[Cell],
    folder: Path,
    sources: Sequence[Path],
    metrics: Sequence[str] | None = None,
    *,
    controls: bool = False,
) -> Outcome:
    """Merge the runs of `sources` into `folder` and write the tables; nothing is run."""
    merge(cells, sources)
    require_finished(cells)
    if controls:
        cells = with_level_controls(cells)
        merge(cells, sources)
        require_finished(cells)
    CellRecords(folder / RECORDS, cells)
    rows = tabulate(cells, metrics)
    return Outcome(rows, write_tables(rows, folder), None)


def merge(cells: Sequence[Cell], folders: Sequence[Path]) -> None:
    """Copy the finished runs of `cells` from the folders of other comparisons.

    A run is taken where its recipe is that of the cell. Paths may lie elsewhere on another machine:
    of them only the last part has to agree, and the copy gets the paths of this machine. A cell
    that is finished already is compared and kept.

    Raises:
        UserError: a recipe differs, or two folders have different results for one cell.
    """
    for folder in folders:
        if not (folder / "runs").is_dir():
            raise UserError(f"{folder} is no folder of a comparison: it has no runs.")
    for cell in cells:
        for folder in folders:
            source = Run(folder / "runs" / cell.folder.name)
            if source.folder == cell.folder or not is_finished(replace(cell, folder=source.folder)):
                continue
            require_same_recipe(source, recipes.resolve(cell.recipe))
            if is_finished(cell):
                _require_same_scores(source, Run(cell.folder))
            else:
                _copy(source, cell)


def require_finished(cells: Sequence[Cell]) -> None:
    """`UserError` that names the cells that no folder had."""
    missing = [cell.folder.name for cell in cells if not is_finished(cell)]
    if missing:
        listed = "\n  ".join(missing)
        raise UserError(
            f"{len(missing)} of {len(cells)} runs are finished in none of the folders; the same "
            f"command without --merge runs them here:\n  {listed}"
        )


def require_same_recipe(run: Run, expected: Recipe) -> None:
    """`UserError` that names the keys in which the recipe of a run differs, paths aside."""
    theirs, ours = (flatten(each.model_dump()) for each in (run.recipe, expected))
    different = [
        key
        for key in dict.fromkeys([*theirs, *ours])
        if key != "workers" and _comparable(theirs.get(key)) != _comparable(ours.get(key))
    ]
    if different:
        listed = ", ".join(f"{k}={theirs.get(k)} instead of {ours.get(k)}" for k in different)
        raise UserError(f"{run.folder} is a run of another recipe: {listed}.")


def _comparable(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value


def _require_same_scores(one: Run, other: Run) -> None:
    if scores_of(one) != scores_of(other):
        raise UserError(
            f"{one.folder} and {other.folder} are runs of one recipe with different results. Keep "
            "one of them: remove the other."
        )


def _copy(source: Run, cell: Cell) -> None:
    """Copy a run as a whole, or not at all; an unfinished one in its place is replaced."""
    partial = cell.folder.with_name(f".{cell.folder.name}{PARTIAL}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source.folder, partial)
        Run.create(partial, recipes.resolve(cell.recipe))
        if cell.folder.exists():
            shutil.rmtree(cell.folder)
        partial.rename(cell.folder)
    except OSError as error:
        raise UserError(f"{source.folder} cannot be copied to {cell.folder}: {error}.") from error
