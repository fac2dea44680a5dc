"""The cells of a comparison: every setting of a grid with every seed, and level controls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np

from macl import recipes
from macl.core.errors import UserError
from macl.probes.score import LAST
from macl.recipes import Overrides, Recipe, text_of
from macl.runs import Run

Setting = tuple[tuple[str, str], ...]
"""(key, value as text) of what varies: what distinguishes the cells of a comparison."""

SUFFIX = ", level control"
"""Ends the label of a control: "macl, level control" belongs to "macl"."""


@dataclass(frozen=True)
class Cell:
    """One setting with one seed."""

    setting: Setting
    seed: int
    recipe: dict[str, Any]
    """The resolved recipe as plain values, which travel between processes."""
    folder: Path


Finished = Callable[[Cell, int, int], None]
"""Called after each run with its cell, how many runs have ended, and of how many."""


def plan(
    name: str, vary: Mapping[str, Sequence[Any]], seeds: int, overrides: Overrides, out: Path
) -> list[Cell]:
    """Every cell of the grid of `vary`, checked before anything runs; `overrides` are for all."""
    for key, values in vary.items():
        if not values:
            raise UserError(f"{key} varies over no values: give at least one.")
    grid = [dict(zip(vary, chosen, strict=True)) for chosen in product(*vary.values())]
    settings = [(tuple((key, text_of(value)) for key, value in own.items()), own) for own in grid]
    return plan_settings(name, settings, seeds, overrides, out)


def plan_settings(
    name: str,
    settings: Sequence[tuple[Setting, Overrides]],
    seeds: int,
    overrides: Overrides,
    out: Path,
    defaults: Overrides | None = None,
) -> list[Cell]:
    """The cells of settings with their own overrides; `overrides` over `defaults` are for all."""
    # `loss.name` is `loss`: both choose the kind of the section.
    varied = {key.removesuffix(".name") for _, own in settings for key in own}
    for key in (key.removesuffix(".name") for key in overrides):
        if key in varied:
            raise UserError(f"{key} varies here, so it cannot be set for all runs.")
    if "seed" in varied | set(overrides):
        raise UserError("every setting is run with the seeds 0, 1, …: `seeds=` says how many.")
    cells = []
    for setting, own in settings:
        for seed in range(seeds):
            recipe = recipes.load(name, defaults, overrides, own, {"seed": seed})
            values, folder = recipe.model_dump(mode="json"), run_folder(out, setting, seed)
            cells.append(Cell(setting, seed, values, folder))
    names = Counter(cell.folder.name for cell in cells)
    if len(names) < len(cells):
        raise UserError(f"two settings have the same name, {names.most_common(1)[0][0]}.")
    return cells


def run_folder(out: Path, setting: Setting, seed: int) -> Path:
    """The folder of a setting's run within a comparison's folder."""
    slug = "_".join(f"{key}-{value}" for key, value in setting) or "all"
    return out / "runs" / f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', slug)}_seed-{seed}"


def is_finished(cell: Cell) -> bool:
    """Trained and evaluated: the scores of the last encoder are recorded after all others."""
    scores = Run(cell.folder).results().get("scores", ())
    return any(score.get("encoder", LAST) == LAST for score in scores)


def control_setting(setting: Setting) -> Setting:
    """The setting of the control: the label of the loss, or else of the first key, is marked."""
    keys = [key for key, _ in setting]
    marked = next((key for key in keys if key.partition(".")[0] == "loss"), keys[0])
    return tuple((key, f"{label}{SUFFIX}" if key == marked else label) for key, label in setting)


def adaptive_setting(setting: Setting) -> Setting | None:
    """The setting that a control belongs to; None for a setting that is not a control."""
    if not any(label.endswith(SUFFIX) for _, label in setting):
        return None
    return tuple((key, label.removesuffix(SUFFIX)) for key, label in setting)


def mean_temperature(run: Run) -> float:
    """The level of τ in a training: the harmonic mean over steps of metrics.csv's "temperature".

    Logits are s/τ, so what a training saw on average is 1/τ. A row stands for the steps since the
    row before it.
    """
    rows = [row for row in run.metrics() if "temperature" in row]
    if not rows:
        raise UserError(f"{run.metrics_file} logs no temperature, so it has no level.")
    steps = np.diff([row["step"] for row in rows], prepend=0.0)
    return harmonic_mean([row["temperature"] for row in rows], weights=steps.tolist())


def is_adaptive(recipe: Recipe) -> bool:
    """Whether the temperature of the recipe's loss changes in training."""
    return getattr(recipe.loss, "fixed_at", lambda level: None)(1.0) is not None


def require_adaptive(cells: Sequence[Cell]) -> None:
    """`UserError` where no control could be made or named."""
    if not all(cell.setting for cell in cells):
        raise UserError("`control=` compares settings: vary a key too, such as loss=nt-xent,macl.")
    if not any(is_adaptive(recipes.resolve(cell.recipe)) for cell in cells):
        raise UserError("`control=level`: no setting has a temperature that adapts.")


def with_level_controls(cells: Sequence[Cell]) -> list[Cell]:
    """All cells, and after each finished one with an adaptive temperature its level control.

    A control has the seed of its adaptive run and the mean τ of that very run, so it stays what it
    is when seeds are added.
    """
    all_cells = []
    for cell in cells:
        all_cells.append(cell)
        recipe = recipes.resolve(cell.recipe)
        if is_adaptive(recipe) and is_finished(cell):
            level = float(f"{mean_temperature(Run(cell.folder)):.6g}")
            values = {f"loss.{key}": value for key, value in recipe.loss.fixed_at(level).items()}
            fixed = recipes.override(recipe, values).model_dump(mode="json")
            setting = control_setting(cell.setting)
            folder = run_folder(cell.folder.parents[1], setting, cell.seed)
            all_cells.append(Cell(setting, cell.seed, fixed, folder))
    return all_cells
