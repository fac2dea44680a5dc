"""The runs of a table or figure of the paper at a chosen scale, what they need and cost."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from macl import modalities, recipes
from macl.core.errors import UserError
from macl.core.plugins import MODALITIES
from macl.core.sharding import ShardedBatches
from macl.experiments.compare import Cell, plan_settings
from macl.paper.tables import PaperTable, Scale
from macl.recipes import Overrides, flatten, texts_of

NOT_GIVEN = Path("NOT-GIVEN")
"""In place of a path that the user did not give, so that runs can be listed without it."""

UNIMPORTANT = frozenset(
    {"name", "description", "requirements", "seed", "workers", "save_every", "monitor_every"}
)
"""Keys of a recipe that do not change what is learned."""


def plan(
    table: PaperTable, scale: str, overrides: Overrides, out: Path, seeds: int | None = None
) -> list[Cell]:
    """Every run of a table, checked before anything runs; none where the table needs none."""
    chosen = table.scale(scale)
    if chosen is None:
        if overrides or seeds is not None:
            raise UserError(f"{table.name} is computed without any run: there is nothing to set.")
        return []
    missing = {key: NOT_GIVEN for key in chosen.requires if key not in overrides}
    defaults, settings = {**chosen.overrides, **missing}, table.settings(chosen)
    count = seeds or chosen.seeds
    return plan_settings(chosen.recipe, settings, count, overrides, out, defaults)


def require(table: PaperTable, scale: str, cells: Sequence[Cell]) -> None:
    """`UserError` that names the first thing that the user has to provide and did not."""
    chosen = table.scale(scale)
    if chosen is None:
        return
    values = flatten(cells[0].recipe)
    for key, what in chosen.requires.items():
        path = Path(values[key])
        if path.name == NOT_GIVEN.name:
            raise UserError(
                f"{table.name} at scale {scale} needs {what}: give it as {option(key, chosen)}. "
                "`macl reproduce` lists what each table needs at each scale."
            )
        # Read after hours of training, so checked now.
        if key.startswith("evaluation.") and not path.expanduser().exists():
            raise UserError(f"{key}={path}: there is no such file or folder.")


def command(table: PaperTable, scale: str, overrides: Overrides, seeds: int | None = None) -> str:
    """The command that repeats a reproduction, without the paths, which are different elsewhere."""
    chosen = table.scale(scale)
    paths = [] if chosen is None else [*chosen.requires]
    own = {key: value for key, value in overrides.items() if key not in paths}
    data = data_key(chosen)
    given = ["--data PATH" if key == data else f"{key}=PATH" for key in paths]
    given += [] if seeds is None else [f"--seeds {seeds}"]
    parts = ["macl", "reproduce", table.name, "--scale", scale, *given]
    return " ".join([*parts, *map(shlex.quote, texts_of(own))])


def data_key(scale: Scale | None) -> str:
    """The key that `data` sets at a scale: that of its only required path, else data.path."""
    required = [] if scale is None else [*scale.requires]
    return required[0] if len(required) == 1 else "data.path"


def option(key: str, scale: Scale) -> str:
    """How a user gives the path that belongs to a key."""
    return "`data=PATH`" if key == data_key(scale) else f"{key}=PATH"


def needs(table: PaperTable, scale: str) -> dict[str, bool | None]:
    """Data, extras, encoders and GPUs → whether they are there; None: it is the user's to give."""
    chosen = table.scale(scale)
    if chosen is None:
        return {}
    needed: dict[str, bool | None] = {
        f"{what} ({option(key, chosen)})": None for key, what in chosen.requires.items()
    }
    modality = recipes.read(chosen.recipe)["modality"]
    extras = filter(None, [MODALITIES.get(modality), *chosen.extras])
    installed = {f"macl[{extra}]": has_extra(extra) for extra in extras}
    needed |= installed
    if all(installed.values()):
        cells = plan(table, scale, {}, Path(), seeds=1)
        for name in dict.fromkeys(cell.recipe["encoder"].get("name", "") for cell in cells):
            there = modalities.get(modality).has_weights(name)
            if there is not None:
                needed[f"weights of {name}"] = there
    if chosen.gpu:
        import torch

        needed[chosen.gpu] = torch.cuda.is_available()
    return needed


def has_extra(extra: str) -> bool:
    """Whether the packages of one of our extras are installed."""
    from packaging.requirements import Requirement

    try:
        for requirement in map(Requirement, metadata.requires("macl") or ()):
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return True


def departures(table: PaperTable, cells: Sequence[Cell]) -> list[list[str]]:
    """Each key in which what was run differs from the paper: its values in the shared settings."""
    planned = plan(table, "paper", {}, Path(), seeds=1)
    paper = {cell.setting: flatten(cell.recipe) for cell in planned}
    here = {cell.setting: flatten(cell.recipe) for cell in cells}
    pairs = [(paper[setting], values) for setting, values in here.items() if setting in paper]
    paths = {key for scale in table.scales.values() for key in scale.requires}
    keys = dict.fromkeys(key for pair in pairs for values in pair for key in values)
    differing = []
    for key in keys:
        sides = [[values.get(key) for values in side] for side in zip(*pairs, strict=True)]
        if key not in UNIMPORTANT | paths and sides[0] != sides[1]:
            texts = (", ".join(dict.fromkeys(str(v) for v in s if v is not None)) for s in sides)
            differing.append([key, *(text or "unset" for text in texts)])
    return differing


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
