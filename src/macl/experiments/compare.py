"""The cells of a comparison: every setting of a grid with every seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from macl import recipes
from macl.core.errors import UserError
from macl.probes.score import LAST
from macl.recipes import Overrides, text_of
from macl.runs import Run

Setting = tuple[tuple[str, str], ...]
"""(key, value as text) of what varies: what distinguishes the cells of a comparison."""


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
