"""Choose values on validation, for each setting of a comparison, to report them on test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from macl.core.errors import UserError, nearest
from macl.core.files import atomic_folder, write_text
from macl.experiments import running
from macl.experiments.compare import Cell, Finished, Setting, plan, run_folder
from macl.experiments.rows import tabulate
from macl.recipes import Overrides, resolve
from macl.runs import Run

CHOICE = "choice.json"
"""The file that says what was tried, and what was chosen by which score."""


def choose_and_plan(
    recipe: str,
    vary: Mapping[str, Sequence[Any]],
    choose: Mapping[str, Sequence[Any]],
    split: str,
    seeds: int,
    overrides: Overrides,
    out: Path,
    metric: str | None,
    how: running.How,
    finished: Finished | None,
) -> list[Cell]:
    """Try all values of `choose` on `split`; the cells of each setting with its best, on test.

    The mean of `metric` over the seeds decides, by default of the first score. What was tried is in
    the folder "choice" of `out`, and used again for the report.
    """
    every = {**vary, **choose}
    tried = plan(recipe, every, seeds, {**overrides, "evaluation.split": split}, out / "choice")
    if split == "validation" and any(cell.recipe["data"].get("holdout") == 0 for cell in tried):
        raise UserError(
            "nothing is set apart for validation: set data.holdout, such as data.holdout=0.1."
        )
    running.run_cells(tried, how, finished)
    scores = [row for row in tabulate(tried) if row.kind == "score"]
    name = metric or scores[0].metric
    means = {tuple(row.setting.items()): row.mean for row in scores if row.metric == name}
    if len(means) < len({cell.setting for cell in tried}):
        raise UserError(f"cannot choose by {name!r}.{nearest(name, {s.metric for s in scores})}")
    best: dict[Setting, Setting] = {}
    for setting, mean in means.items():
        own = setting[: len(vary)]
        if own not in best or mean > means[best[own]]:
            best[own] = setting
    cells = []
    for trial, planned in zip(tried, plan(recipe, every, seeds, overrides, out), strict=True):
        own = trial.setting[: len(vary)]
        if trial.setting == best[own]:
            cell = replace(planned, setting=own, folder=run_folder(out, own, trial.seed))
            _use_again(trial, cell)
            cells.append(cell)
    document = {
        "score": name,
        "split": split,
        "tried": [[dict(setting), mean] for setting, mean in means.items()],
        "chosen": [[dict(setting), means[setting]] for setting in best.values()],
    }
    write_text(out / CHOICE, json.dumps(document, indent=2) + "\n")
    return cells


def choice_lines(out: Path) -> list[str]:
    """What was chosen in a comparison's folder, a line for each setting."""
    choice = json.loads((out / CHOICE).read_text(encoding="utf-8"))
    return [
        f"chosen by {choice['score']} on {choice['split']}, {mean:.2f}: "
        + ", ".join(f"{key}={value}" for key, value in setting.items())
        for setting, mean in choice["chosen"]
    ]


def _use_again(trial: Cell, cell: Cell) -> None:
    """The trained run of a trial as that of a cell, still to be evaluated on its own split."""
    if not cell.folder.exists():
        with atomic_folder(cell.folder) as partial:
            left_out = shutil.ignore_patterns("results.json", "report.html")
            shutil.copytree(trial.folder, partial, ignore=left_out, dirs_exist_ok=True)
            Run.create(partial, resolve(cell.recipe))
