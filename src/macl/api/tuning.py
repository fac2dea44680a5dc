"""Settings searched and confirmed: tune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.core.errors import UserError
from macl.core.installed import require

if TYPE_CHECKING:
    from macl.experiments.confirm import Tuned
    from macl.experiments.tune import Space
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
) -> Tuned:
    """Search the settings of a recipe by Optuna; then train the best few again with new seeds.

        macl.tune("digits", {"loss": ["nt-xent", "macl"], "optimizer.lr": Range(1e-4, 1e-2, True)})

    The same call continues a search that was stopped; calls on several machines that share the
    folder share the search.

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
        jobs, executor: of the confirmation; as for `run_comparison`.
        overrides, progress, values: as for `run_comparison`.

    Raises:
        UserError: there are no labels to validate by, and no `criterion`.
    """
    require("optuna", "tune")
    from macl.experiments import tune as module
    from macl.experiments.confirm import confirm as confirmed
    from macl.experiments.devices import count_jobs
    from macl.experiments.running import How

    if criterion is not None:
        if criterion not in module.LABEL_FREE:
            raise UserError(f"`criterion=` {criterion}: there are {', '.join(module.LABEL_FREE)}.")
        objectives = ["alpha_req_distance" if criterion == "alpha_req" else criterion]
    if min(trials, confirm, seeds, len(search), len(objectives)) < 1:
        raise UserError(
            "`trials=`, `confirm=` and `seeds=` are 1 at least; search one key at least."
        )
    setup = module.Search(
        recipe,
        search,
        {**data_overrides(data), **(overrides or {}), **values},
        Path(out) if out is not None else Path("tuning") / Path(recipe).stem,
        tuple(map(module.Objective.of, objectives)),
    )
    how = How(count_jobs(jobs), 1, executor)
    setup.check()
    with progress_bars(progress):
        study = module.run_search(setup, trials)
        return confirmed(setup, study, confirm, seeds, how)
