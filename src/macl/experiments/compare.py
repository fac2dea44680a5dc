"""Compare settings fairly: every cell of a grid with every seed, and one table of them all."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from macl import recipes
from macl.core.errors import UserError
from macl.experiments.statistics import Difference, mean_std, paired_difference
from macl.runs import Run

Setting = tuple[tuple[str, str], ...]
"""(key, value) of what varies: what tells the cells of a comparison apart."""

STORY = ("alignment", "temperature", "gradient_scale")
"""Training figures that explain a score: A, τ and W̄ over the last epoch."""


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
    such score, or this is it."""


def plan(
    name: str, vary: Sequence[str], seeds: int, overrides: Sequence[str], out: Path
) -> list[Cell]:
    """Every cell of the grid, checked before anything runs.

    Args:
        name: the recipe.
        vary: "key=a,b,c"; several make a grid.
        seeds: seeds 0 … seeds − 1.
        overrides: key=value for all cells.
        out: the comparison's folder.
    """
    axes = [_axis(text) for text in vary]
    keys = [axis[0][0] for axis in axes]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise UserError(f"--vary {twice[0]} is given twice; write all its values in one: a,b,c.")
    settings = [
        (setting, [f"{key}={value}" for key, value in setting])
        for setting in itertools.product(*axes)
    ]
    refuse_varied(overrides, settings)
    return plan_settings(name, settings, seeds, overrides, out)


def refuse_varied(
    overrides: Sequence[str], settings: Iterable[tuple[Setting, Sequence[str]]]
) -> None:
    """`UserError` for a user's override of what the settings choose: it would be ignored."""
    varied = {key_of(own) for _, owns in settings for own in owns}
    for key in map(key_of, overrides):
        if key in varied:
            raise UserError(f"{key} is among what varies here, so it cannot be set for all runs.")


def key_of(override: str) -> str:
    """The key that an override sets; `loss.name` is another word for `loss`."""
    return override.partition("=")[0].strip().removesuffix(".name")


def plan_settings(
    name: str,
    settings: Iterable[tuple[Setting, Sequence[str]]],
    seeds: int,
    overrides: Sequence[str],
    out: Path,
) -> list[Cell]:
    """The cells of settings whose own overrides are given beside them; the rest as in `plan`."""
    settings = list(settings)
    if "seed" in map(key_of, [*overrides, *(own for _, owns in settings for own in owns)]):
        raise UserError("every setting is run with the seeds 0, 1, …: say how many with --seeds.")
    cells = []
    for setting, own in settings:
        for seed in range(seeds):
            given = recipes.parse([*overrides, *own, f"seed={seed}"], recipes.read(name))
            recipe = recipes.load(name, given).model_dump(mode="json")
            cells.append(Cell(setting, seed, recipe, run_folder(out, setting, seed)))
    names = Counter(cell.folder.name for cell in cells)
    if len(names) < len(cells):
        raise UserError(f"two settings have the same name, {names.most_common(1)[0][0]}.")
    return cells


def run_folder(out: Path, setting: Setting, seed: int) -> Path:
    """Where the run of a setting lies in a comparison's folder."""
    slug = "_".join(f"{key}-{value}" for key, value in setting) or "all"
    return out / "runs" / f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', slug)}_seed-{seed}"


def _axis(text: str) -> list[tuple[str, str]]:
    """The values of "key=a,b,[c,d]" as they are written: a YAML list without its brackets."""
    key, _, values = text.partition("=")
    listed = f"[{values}]"
    try:
        nodes = yaml.compose(listed, yaml.SafeLoader).value
    except yaml.YAMLError as error:
        raise UserError(f"--vary {text!r}: the values cannot be read.") from error
    if not nodes:
        raise UserError(f"--vary {text!r}: write key=a,b,c such as loss=nt-xent,dcl,macl.")
    return [
        (key.strip(), listed[node.start_mark.index : node.end_mark.index].strip()) for node in nodes
    ]


def is_finished(cell: Cell) -> bool:
    """Trained and judged."""
    return bool(Run(cell.folder).results().get("scores"))


def story(run: Run) -> dict[str, float]:
    """A, τ and W̄ averaged over the rows of the last epoch; NaN where nothing was trained."""
    rows = run.metrics()
    if not rows:
        return dict.fromkeys(STORY, math.nan)
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    return {key: mean_std([row[key] for row in last if key in row])[0] for key in STORY}


def tabulate(cells: Sequence[Cell], metrics: Sequence[str] | None = None) -> list[Row]:
    """One row per setting and metric of the finished cells, against the baseline of all of them.

    `metrics` like "knn top1" picks and orders them.
    """
    values: dict[tuple[Setting, str], dict[int, float]] = {}
    for cell in filter(is_finished, cells):
        run = Run(cell.folder)
        scores = {
            " ".join(filter(None, (s["protocol"], s["task"], s["metric"]))): s["value"]
            for s in run.results()["scores"]
        }
        for metric, value in (scores | story(run)).items():
            values.setdefault((cell.setting, metric), {})[cell.seed] = value
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    names = list(metrics or dict.fromkeys(metric for _, metric in values))
    missing = [name for name in names if not any(metric == name for _, metric in values)]
    if missing:
        known = ", ".join(dict.fromkeys(metric for _, metric in values))
        raise UserError(f"no run has the metric {missing[0]!r}; there are: {known}.")
    return list(_rows(settings, names, values))


def baseline_of(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The first value of the first key, all else equal; None if that is `setting` or not there."""
    base = settings[0][:1] + setting[1:]
    return base if base != setting and base in settings else None


def _rows(
    settings: list[Setting], names: list[str], values: dict[Any, dict[int, float]]
) -> Iterator[Row]:
    for setting in settings:
        base = baseline_of(setting, settings)
        for name in names:
            own = dict(sorted(values.get((setting, name), {}).items()))
            if not own:  # judged by other protocols than the rest
                continue
            mean, std = mean_std([*own.values()])
            other = values.get((base, name), {})
            shared = [seed for seed in own if seed in other]
            difference = None
            if shared:
                difference = paired_difference([own[s] for s in shared], [other[s] for s in shared])
            yield Row(dict(setting), name, [*own], [*own.values()], mean, std, difference)
