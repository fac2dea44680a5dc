"""The best settings of a search, trained again with new seeds.

The best of many trials is partly luck. So the best few are compared with the recipe as it is, over
seeds that the search has not seen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from macl import recipes
from macl.core.errors import UserError
from macl.core.files import write_text
from macl.experiments.rows import Row, tabulate
from macl.experiments.running import How, run_cells
from macl.experiments.tables import markdown, markdown_table
from macl.experiments.tune import PROTOCOL, Search, validate


@dataclass(frozen=True)
class Tuned:
    """What a search found, and what was left of it with new seeds."""

    folder: Path
    trials: list[dict[str, Any]]
    """In order: state, setting, and the figures of those that ended."""
    chosen: list[dict[str, str]]
    """The settings that were confirmed, best of the search first."""
    rows: list[Row]
    """The confirmation: the recipe as it is, then the chosen ones; see `macl.compare`."""
    best: str
    """The setting with the best mean over new seeds."""
    files: list[Path]


def confirm(search: Search, study: Any, most: int, seeds: int, how: How) -> Tuned:
    """Train the best few settings, and the recipe as it is, with the seeds 1 … and compare them.

    Writes tune.md, tune.json and best.yaml.
    """
    chosen, values = _chosen(search, study, most), recipes.read(search.recipe)
    typed = [recipes.parse([f"{k}={v}" for k, v in own.items()], values) for own in chosen]
    every = [search.cell(own, seed) for own in ({}, *typed) for seed in range(1, seeds + 1)]
    cells = [*{cell.folder: cell for cell in every}.values()]
    run_cells(cells, how, work=partial(validate, objectives=search.objectives))
    rows = tabulate(cells, [f"{PROTOCOL} {each.name}" for each in search.objectives])
    first, sign = rows[0].metric, -1 if search.objectives[0].smallest else 1
    winner = max((r for r in rows if r.metric == first), key=lambda r: sign * r.mean).setting
    recipe = next(cell.recipe for cell in cells if dict(cell.setting) == winner)
    trials = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "setting": trial.user_attrs.get("setting", {}),
            "values": trial.values if trial.state.name == "COMPLETE" else None,
        }
        for trial in study.get_trials(deepcopy=False)
    ]
    best = winner["setting"]
    texts = {
        "tune.md": _page(search, trials, rows, best),
        "tune.json": json.dumps({"trials": trials, "chosen": chosen, "best": best}, indent=2),
        "best.yaml": recipes.dump(recipes.resolve(recipe | {"seed": 0})),
    }
    files = {search.folder / name: text for name, text in texts.items()}
    for file, text in files.items():
        write_text(file, text)
    return Tuned(search.folder, trials, chosen, rows, best, [*files])


def _chosen(search: Search, study: Any, most: int) -> list[dict[str, str]]:
    """The settings of the best trials, or of the Pareto front, as texts."""
    from optuna.trial import TrialState

    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not ended:
        raise UserError(f"no trial of {search.folder} ended: all were given up or failed.")
    if len(search.objectives) > 1:
        ended = study.best_trials
    sign = 1 if search.objectives[0].smallest else -1
    ordered = sorted(ended, key=lambda trial: sign * trial.values[0])
    settings = {str(t.user_attrs["setting"]): t.user_attrs["setting"] for t in ordered}
    return [*settings.values()][:most]


def _page(search: Search, trials: list[dict[str, Any]], rows: list[Row], best: str) -> str:
    names = [each.name for each in search.objectives]
    lines = [
        [
            str(trial["trial"]),
            *(trial["setting"].get(key, "") for key in search.space),
            *(f"{value:.4g}" for value in trial["values"] or [math.nan] * len(names)),
            trial["state"],
        ]
        for trial in trials
    ]
    trials_table = markdown_table(["trial", *search.space, *names, "state"], lines)
    return (
        f"# Search of {search.recipe}\n\n{trials_table}\n\n# Confirmation with new seeds\n\n"
        f"{markdown(rows)}\nBest with new seeds: {best}.\n"
    )
