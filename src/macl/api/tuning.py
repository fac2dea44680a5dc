"""Settings searched and confirmed: tune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.core.errors import UserError
from macl.core.installed import require
from macl.experiments import confirm as confirming
from macl.experiments.executors import count_jobs
from macl.experiments.running import How
from macl.experiments.tune import LABEL_FREE, Objective, Search, Space, run_search
from macl.recipes import Overrides


def tune(
    recipe: str,
    search: Space,
    *,
    trials: int = 30,
    objectives: Sequence[str] = ("monitor",),
    criterion: str | None = None,
    confirm: int = 3,
    seeds: int = 3,
    data: PathLike | None = None,
    out: PathLike | None = None,
    jobs: int | str = 1,
    executor: str = "local",
    overrides: Overrides | None = None,
    progress: bool = False,
    **values: Any,
) -> confirming.Tuned:
    """Search the settings of a recipe by Optuna; then train the best few again with new seeds.

        macl.tune("digits", {"loss": ["nt-xent", "macl"], "optimizer.lr": Range(1e-4, 1e-2, True)})

    The same call continues a search that was stopped; calls on several machines that share the
    folder share the search.

    `jobs`, `executor`, `overrides`, `progress`, `values` are as in `run_comparison`.

    Args:
        recipe: a recipe's name or a YAML file.
        search: key → a list of values, or a `macl.experiments.tune.Range`.
        trials: that end or are given up early, over all calls.
        objectives: columns of metrics.csv, or "seconds"; "NAME:min" to minimize. The first one
            orders the results; several give a Pareto front. "monitor" is the validation score.
        criterion: instead of them, without labels: "effective_rank" or "alpha_req" (near 1).
        confirm: settings to train again; with several objectives, of the front.
        seeds: new seeds for each of them.
        data: a file or a folder.
        out: the folder; by default tuning/RECIPE.

    Raises:
        UserError: there are no labels to validate by, and no `criterion`.
    """
    require("optuna", "tune")
    if criterion is not None:
        if criterion not in LABEL_FREE:
            raise UserError(f"`criterion=` {criterion}: there are {', '.join(LABEL_FREE)}.")
        objectives = ["alpha_req_distance" if criterion == "alpha_req" else criterion]
    if min(trials, confirm, seeds, len(search), len(objectives)) < 1:
        raise UserError(
            "`trials=`, `confirm=` and `seeds=` are 1 at least; search one key at least."
        )
    setup = Search(
        recipe,
        search,
        {**data_overrides(data), **(overrides or {}), **values},
        Path(out) if out is not None else Path("tuning") / Path(recipe).stem,
        tuple(map(Objective.of, objectives)),
    )
    how = How(count_jobs(jobs), 1, executor)
    setup.check()
    with progress_bars(progress):
        study = run_search(setup, trials)
        return confirming.confirm(setup, study, confirm, seeds, how)
