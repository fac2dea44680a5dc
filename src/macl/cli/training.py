"""`macl recipes` and `macl train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from typer import Argument, Option

from macl import api
from macl.api.training import check_early, folder_of, recipe_overview
from macl.cli import arguments
from macl.cli.arguments import stored_recipe
from macl.cli.console import message, table
from macl.core.errors import UserError
from macl.core.launch import end_with_input
from macl.core.progress import bars_fit
from macl.core.shown import shown

NO_GRADIENT = 0.05
"""Mean gradient scale below which a run may suffer from gradient reduction."""
NO_LOSS = 0.0005


def recipes(
    name: str | None = Argument(None, help="Show this recipe in full; without it, list all."),
) -> None:
    """List the recipes: what each is, what it needs."""
    from macl import recipes as module

    if name is not None:
        module.read(name)  # explains a wrong name or a broken file
        path = module.available().get(name, Path(name))
        print(shown(path.read_text(encoding="utf-8")))
        return
    rows = [list(line.values()) for line in recipe_overview()]
    table("Recipes", ("name", "modality", "what", "requirements"), rows)


def train(
    recipe: str = Argument(help="A recipe's name, a YAML file, or with --resume a run folder."),
    overrides: arguments.Overrides = None,
    data: arguments.Data = None,
    out: Path | None = Option(
        None, help="The run folder to write. Default: runs/RECIPE, or runs/RECIPE-2 and so on."
    ),
    resume: bool = Option(
        False, "--resume", help="Continue a stopped run; extend a finished one by larger epochs=N."
    ),
    devices: int | None = Option(
        None,
        min=1,
        help="Processes per machine: one for each GPU, or on the CPU. Default: those that torchrun "
        "or srun started, else 1.",
    ),
    nodes: int | None = Option(None, min=1, help="Machines. Default: of torchrun or srun, else 1."),
) -> None:
    """Train an encoder without labels."""
    end_with_input()
    from macl import recipes as module

    stored = stored_recipe(recipe)
    if stored is not None and out is None and not resume:
        raise UserError(
            f"{recipe} is a run folder. Add --resume to continue it, or --out FOLDER to train its "
            "recipe again from the start."
        )
    if resume:
        folder_of(recipe, recipe, out, resume)  # there is a run
    given = module.parse(overrides or (), module.read(stored or recipe))
    resolved = api.resolve(recipe, data=data, overrides=given)  # before anything heavy is imported
    folder = folder_of(recipe, resolved.name, out, resume)
    check_early(resolved, folder, resume)

    from macl.cli.progress import Announce, progress_lines
    from macl.core.signals import Interrupted
    from macl.runs import Run

    before = Run(folder).metrics() if resume else []
    terminal = bars_fit()
    announced = Announce(resolved, folder)
    try:
        run = api.train(
            resolved,
            out=folder,
            resume=resume,
            devices=devices or 0,
            nodes=nodes or 0,
            callbacks=[announced, *([] if terminal else [progress_lines()])],
            progress=terminal,
        )
    except Interrupted as stop:
        message(f"stopped by {stop}; continue with: {_command('train', folder, '--resume')}")
        sys.exit(130)
    rows = run.metrics()
    if rows and rows == before:
        message(
            f"{folder} is finished already; extend it with --resume epochs=N (or steps=N), where "
            f"N is more than {resolved.length}"
        )
    elif rows:
        title = run.modality.monitor_title(resolved.evaluation)
        message(f"done: {_summary(rows, title)}")
    else:
        message("done: epochs=0 keeps the initial encoder, the baseline without training")
    for command in _next(folder, announced.protocols, resolved.evaluation, rows):
        message(f"next: {command}")


def _command(*parts: str | Path) -> str:
    return shlex.join(["macl", *map(str, parts)])


def _summary(rows: list[dict[str, float]], monitored: str) -> str:
    """The last value of the loss and of each metric; a floor that was not reached is left out."""
    from macl.losses.output import is_bin

    last = {key: value for row in rows for key, value in row.items()}
    hidden = ("step", "epoch", "lr", *(["floored"] if not last.get("floored") else []))
    names = {"monitor": f"{monitored} within the training data"}
    shown = {k: v for k, v in last.items() if k not in hidden and not is_bin(k)}
    return ", ".join(f"{names.get(k, k.replace('_', ' '))} {v:.3f}" for k, v in shown.items())


def _next(folder: Path, protocols: Any, evaluation: Any, rows: list[dict[str, float]]) -> list[str]:
    """The commands that will work on this run, as texts."""
    commands = []
    last = rows[-1] if rows else {}
    if last.get("gradient_scale", 1.0) < NO_GRADIENT or last.get("loss", 1.0) < NO_LOSS:
        commands.append(_command("diagnose", folder))
    if protocols:
        own = getattr(evaluation, "protocols", protocols)
        some = [] if set(own) == set(protocols) else ["--protocol", ",".join(protocols)]
        commands.append(_command("evaluate", folder, *some))
    elif protocols is not None:
        commands.append(_command("embed", folder, "INPUT", "-o", "vectors.parquet"))
    return commands
