"""Comparisons: every setting of a grid with every seed, and one table of the results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from macl import recipes
from macl.core.errors import UserError
from macl.experiments.statistics import Difference, mean_std, paired_difference
from macl.recipes import Overrides, text_of
from macl.runs import Run

Setting = tuple[tuple[str, str], ...]
"""(key, value as text) of what varies: what distinguishes the cells of a comparison."""

NO_METRICS = frozenset({"step", "epoch", "lr", "loss", "monitor"})
"""Columns of metrics.csv that are no figures of the training method."""

PREFERRED = ("alignment", "temperature", "gradient_scale", "effective_anchors")
"""Figures of contrastive training that come first, in this order, where a run has them."""


@dataclass(frozen=True)
class Cell:
    """One setting with one seed."""

    setting: Setting
    seed: int
    recipe: dict[str, Any]
    """The resolved recipe as plain values, which travel between processes."""
    folder: Path


@dataclass(frozen=True)
class Row:
    """One setting and one metric over all seeds."""

    setting: dict[str, str]
    metric: str
    seeds: list[int]
    values: list[float]
    """By seed."""
    mean: float
    std: float
    difference: Difference | None
    """To the baseline: the first value of the first varied key, all else equal. None: there is no
    such score, or this row is the baseline."""
    kind: Literal["score", "training"] = "score"
    """A score of the evaluation, or a figure of the training."""


def plan(
    name: str,
    vary: Mapping[str, Sequence[Any]],
    seeds: int,
    overrides: Overrides,
    out: Path,
) -> list[Cell]:
    """Every cell of the grid, checked before anything runs.

    Args:
        name: the recipe.
        vary: the values of each key that varies; several keys make a grid.
        seeds: seeds 0 … seeds − 1.
        overrides: for all cells.
        out: the comparison's folder.
    """
    for key, values in vary.items():
        if not values:
            raise UserError(f"{key} varies over no values: give at least one.")
    settings = [
        (tuple((key, text_of(value)) for key, value in own.items()), own)
        for own in (dict(zip(vary, chosen, strict=True)) for chosen in product(*vary.values()))
    ]
    refuse_varied(overrides, settings)
    return plan_settings(name, settings, seeds, [overrides], out)


def refuse_varied(overrides: Overrides, settings: Iterable[tuple[Setting, Overrides]]) -> None:
    """`UserError` for an override of a key that varies: it would have no effect."""
    varied = {section_key(key) for _, own in settings for key in own}
    for key in map(section_key, overrides):
        if key in varied:
            raise UserError(f"{key} varies here, so it cannot be set for all runs.")


def section_key(key: str) -> str:
    """The key, with `loss.name` as `loss`: both choose the kind of the section."""
    return key.removesuffix(".name")


def plan_settings(
    name: str,
    settings: Iterable[tuple[Setting, Overrides]],
    seeds: int,
    layers: Sequence[Overrides],
    out: Path,
) -> list[Cell]:
    """The cells of settings with their own overrides; `layers` are for all, in this order."""
    settings = list(settings)
    if any("seed" in layer for layer in (*layers, *(own for _, own in settings))):
        raise UserError("every setting is run with the seeds 0, 1, …: choose how many by --seeds.")
    cells = []
    for setting, own in settings:
        for seed in range(seeds):
            recipe = recipes.load(name, *layers, own, {"seed": seed}).model_dump(mode="json")
            cells.append(Cell(setting, seed, recipe, run_folder(out, setting, seed)))
    names = Counter(cell.folder.name for cell in cells)
    if len(names) < len(cells):
        raise UserError(f"two settings have the same name, {names.most_common(1)[0][0]}.")
    return cells


def run_folder(out: Path, setting: Setting, seed: int) -> Path:
    """The folder of a setting's run within a comparison's folder."""
    slug = "_".join(f"{key}-{value}" for key, value in setting) or "all"
    return out / "runs" / f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', slug)}_seed-{seed}"


def is_finished(cell: Cell) -> bool:
    """Trained and evaluated."""
    return bool(Run(cell.folder).results().get("scores"))


def training_figures(run: Run) -> dict[str, float]:
    """The mean of each figure of the training method over the last epoch's rows of metrics.csv.

    Which figures there are depends on the method; contrastive ones have alignment, temperature and
    gradient scale. Empty where nothing was trained.
    """
    rows = run.metrics()
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    names = dict.fromkeys(name for row in last for name in row if name not in NO_METRICS)
    ordered = [*(n for n in PREFERRED if n in names), *(n for n in names if n not in PREFERRED)]
    return {name: mean_std([row[name] for row in last if name in row])[0] for name in ordered}


def tabulate(cells: Sequence[Cell], metrics: Sequence[str] | None = None) -> list[Row]:
    """One row per setting and metric of the finished cells, each compared with its baseline.

    `metrics` like "knn top1" selects and orders them; by default all scores, then all figures of
    the training.
    """
    values: dict[tuple[Setting, str], dict[int, float]] = {}
    scored: set[str] = set()
    for cell in filter(is_finished, cells):
        run = Run(cell.folder)
        scores = {
            " ".join(filter(None, (s["protocol"], s["task"], s["metric"]))): s["value"]
            for s in run.results()["scores"]
        }
        scored |= set(scores)
        for metric, value in (training_figures(run) | scores).items():
            values.setdefault((cell.setting, metric), {})[cell.seed] = value
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    known = sorted(dict.fromkeys(metric for _, metric in values), key=lambda m: m not in scored)
    names = list(metrics or known)
    missing = [name for name in names if name not in known]
    if missing:
        raise UserError(f"no run has the metric {missing[0]!r}; there are: {', '.join(known)}.")
    return list(_rows(settings, names, values, scored))


def baseline_of(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The first value of the first key, all else equal; None if that is `setting` or not there."""
    base = settings[0][:1] + setting[1:]
    return base if base != setting and base in settings else None


def _rows(
    settings: list[Setting],
    names: list[str],
    values: dict[Any, dict[int, float]],
    scored: set[str],
) -> Iterator[Row]:
    for setting in settings:
        base = baseline_of(setting, settings)
        for name in names:
            own = dict(sorted(values.get((setting, name), {}).items()))
            if not own:  # evaluated by other protocols than the rest
                continue
            mean, std = mean_std([*own.values()])
            other = values.get((base, name), {})
            shared = [seed for seed in own if seed in other]
            difference = None
            if shared:
                difference = paired_difference([own[s] for s in shared], [other[s] for s in shared])
            kind: Literal["score", "training"] = "score" if name in scored else "training"
            yield Row(dict(setting), name, [*own], [*own.values()], mean, std, difference, kind)
