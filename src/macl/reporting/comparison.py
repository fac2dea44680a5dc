"""The folder of a comparison: its settings, their runs, and the rows of its table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from macl.core.errors import UserError
from macl.experiments.compare import Cell, run_folder
from macl.experiments.rows import Row, tabulate
from macl.reporting.charts import Dots, setting_name
from macl.runs import Run

TABLE = "table.parquet"

COLUMNS = {"metric": str, "seed": int, "value": float}
"""Columns of the table besides those of the varied keys, with their types."""


@dataclass(frozen=True)
class Comparison:
    """A finished comparison."""

    folder: Path
    settings: dict[str, list[Run]]
    """Runs of each setting, one per seed, the baseline first."""
    rows: list[Row]

    @property
    def scores(self) -> list[Dots]:
        """The rows of each score, in the order of the table; training metrics are curves."""
        metrics = dict.fromkeys(row.metric for row in self.rows if row.kind == "score")
        return [Dots(name, [r for r in self.rows if r.metric == name]) for name in metrics]


def is_comparison(folder: Path) -> bool:
    """Whether the folder was written by `macl compare`, rather than by a training run."""
    known = (folder / TABLE).is_file() or (folder / "runs").is_dir()
    return known and not (folder / "recipe.yaml").is_file()


def open_comparison(folder: Path) -> Comparison:
    """Read the table and open the runs that it lists."""
    if not (folder / TABLE).is_file():
        raise UserError(
            f"{folder} has no {TABLE} yet: run its `macl compare` command again to finish it."
        )
    try:
        table = pd.read_parquet(folder / TABLE).astype(COLUMNS)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise UserError(
            f"{folder / TABLE} cannot be read ({str(error).splitlines()[0]}). Run its `macl "
            "compare` command again: it writes the table anew from the finished runs."
        ) from error
    keys = [name for name in table.columns if name not in COLUMNS]
    cells, named = [], dict[str, list[Run]]()
    for *values, number in table[[*keys, "seed"]].drop_duplicates().itertuples(index=False):
        setting = tuple((k, v) for k, v in zip(keys, values, strict=True) if isinstance(v, str))
        cell = Cell(setting, int(number), {}, run_folder(folder, setting, int(number)))
        if Run(cell.folder).results_file.is_file():
            cells.append(cell)
            named.setdefault(setting_name(dict(setting)), []).append(Run.open(cell.folder))
    if not cells:
        raise UserError(
            f"{folder} has a table but none of its runs: run its `macl compare` command again."
        )
    return Comparison(folder, named, tabulate(cells, list(dict.fromkeys(table["metric"]))))
