"""Choose values on validation, for each setting of a comparison, to report them on test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from macl.core.errors import UserError, nearest
from macl.core.files import atomic_folder, atomic_write
from macl.experiments.compare import Cell, Setting, plan, plan_settings
from macl.experiments.rows import scores_of
from macl.experiments.statistics import mean_std
from macl.recipes import Overrides, resolve, text_of
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
    run: Callable[[Sequence[Cell]], None],
) -> list[Cell]:
    """Try all values of `choose` on `split`; the cells of each setting with its best, on test.

    The mean of `metric` over the seeds decides, by default of the first score. `run` trains and
    evaluates cells. What was tried is in the folder "choice" of `out`, and used again for the
    report.
    """
    every = {**vary, **choose}
    on_split = {**overrides, "evaluation.split": split}
    tried = plan(recipe, every, seeds, on_split, out / "choice")
    if split == "validation" and any(cell.recipe["data"].get("holdout") == 0 for cell in tried):
        raise UserError(
            "nothing is set apart for validation: set data.holdout, such as data.holdout=0.1."
        )
    run(tried)
    means: dict[Setting, float] = {}
    best: dict[Setting, Setting] = {}
    for setting in dict.fromkeys(cell.setting for cell in tried):
        means[setting], metric = _mean([c for c in tried if c.setting == setting], metric)
        own = setting[: len(vary)]
        if own not in best or means[setting] > means[best[own]]:
            best[own] = setting
    values = {key: {text_of(value): value for value in given} for key, given in every.items()}
    settings = [(own, {key: values[key][text] for key, text in best[own]}) for own in best]
    cells = plan_settings(recipe, settings, seeds, [overrides], out)
    places = {(cell.setting, cell.seed): cell.folder for cell in tried}
    for cell in cells:
        _use_again(Run(places[best[cell.setting], cell.seed]), cell)
    document = {
        "score": metric,
        "split": split,
        "tried": [[dict(setting), mean] for setting, mean in means.items()],
        "chosen": [[dict(setting), means[setting]] for setting in best.values()],
    }
    text = json.dumps(document, indent=2) + "\n"
    atomic_write(out / CHOICE, lambda file: file.write(text.encode()))
    return cells


def choice_lines(out: Path) -> list[str]:
    """What was chosen in a comparison's folder, a line for each setting."""
    choice = json.loads((out / CHOICE).read_text(encoding="utf-8"))
    return [
        f"chosen by {choice['score']} on {choice['split']}, {mean:.2f}: "
        + ", ".join(f"{key}={value}" for key, value in setting.items())
        for setting, mean in choice["chosen"]
    ]


def _mean(cells: Sequence[Cell], metric: str | None) -> tuple[float, str]:
    """The mean of a score over the seeds, and its name; by default the first score's."""
    scores = [scores_of(Run(cell.folder)) for cell in cells]
    name = metric or next(iter(scores[0]))
    if any(name not in each for each in scores):
        raise UserError(f"cannot choose by {name!r}.{nearest(name, scores[0])}")
    return mean_std([each[name] for each in scores])[0], name


def _use_again(tried: Run, cell: Cell) -> None:
    """The trained run as that of a cell, which is still to be evaluated on its own split."""
    if not cell.folder.exists():
        with atomic_folder(cell.folder) as partial:
            left_out = shutil.ignore_patterns("results.json", "report.html")
            shutil.copytree(tried.folder, partial, ignore=left_out, dirs_exist_ok=True)
            Run.create(partial, resolve(cell.recipe))
