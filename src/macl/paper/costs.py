"""Estimated cost of runs: steps, samples and hours, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from macl.core.sharding import ShardedBatches
from macl.experiments.compare import Cell
from macl.paper.tables import PaperTable, Scale
from macl.recipes import texts_of


class Cost(NamedTuple):
    """The cost of training alone: steps, items seen over all epochs, and hours at a speed."""

    steps: int
    samples: int
    hours: float


def cost(recipe: dict[str, Any], items: int, samples_per_second: float) -> Cost:
    """The cost of training a resolved recipe on `items` training items."""
    batch, epochs = recipe["batch_size"], recipe["epochs"]
    batches = len(ShardedBatches(items, batch, 0, 0, 1, recipe["drop_last"]))
    steps = math.ceil(batches / recipe["accumulate_grad_batches"]) * epochs
    samples = min(items, batches * batch) * epochs
    return Cost(steps, samples, samples / samples_per_second / 3600)


def time_text(hours: float) -> str:
    """A time in the unit that suits it: "9 seconds", "12 minutes", "3.5 hours"."""
    for unit, seconds in (("hour", 3600.0), ("minute", 60.0), ("second", 1.0)):
        count = hours * 3600 / seconds
        if count >= 1:
            shown = f"{count:.2g}" if count < 100 else f"{count:,.0f}"
            return f"{shown} {unit}{'s' * (shown != '1')}"
    return "under a second"


def listing(
    table: PaperTable, scale: Scale, cells: Sequence[Cell]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]], Cost]:
    """Header and a line per setting with all its seeds, and the cost of everything together."""
    resolved = {cell.setting: cell.recipe for cell in cells}
    seeds = len(cells) // len(resolved)
    own = {setting: " ".join(texts_of(given)) for setting, given in table.settings(scale)}
    lines, costs = [], []
    for setting, values in resolved.items():
        one = cost(values, scale.items_of(setting), scale.speed.samples_per_second)
        costs += [one] * seeds
        labels = (label for _, label in setting)
        recipe = f"{scale.recipe} {own[setting]}".strip()
        numbers = (f"{one.steps:,}", f"{one.samples:,}", time_text(one.hours))
        lines.append((*labels, seeds, recipe, *numbers))
    header = (*table.axes, "seeds", "recipe", "steps", "samples", "time")
    return header, lines, Cost(*map(sum, zip(*costs, strict=True)))
