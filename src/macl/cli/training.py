"""`macl recipes` and `macl train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from macl.cli.arguments import DataOption, Overrides, stored_recipe
from macl.cli.console import command_text, escaped, message, on_terminal, table
from macl.core.errors import UserError
from macl.core.launch import end_with_input
from macl.core.shown import shown

NO_GRADIENT = 0.05
"""Mean gradient scale below which a run may suffer from gradient reduction."""
NO_LOSS = 0.0005


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Show this recipe in full; without it, list all.")
    ] = None,
) -> None:
    """List the recipes: what each is, what it needs."""
    from macl import recipes as module

    if name is not None:
        module.read(name)  # explains a wrong name or a broken file
        path = module.available().get(name, Path(name))
        print(shown(path.read_text(encoding="utf-8")))
        return
    from macl.api.training import recipe_overview

    rows = [list(line.values()) for line in recipe_overview()]
    table("Recipes", ("name", "modality", "what", "requirements"), rows)


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, a YAML file, or with --resume a run folder.")
    ],
    overrides: Overrides = None,
    data: DataOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder to write. Default: runs/RECIPE, or runs/RECIPE-2 and so on."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a run that was stopped; with a larger epochs=N, extend a finished one.",
        ),
    ] = False,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes per machine: one for each GPU, or on the CPU. Default: those that "
            "torchrun or srun started, else 1.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of machines. Default: those of torchrun or srun, else 1."),
    ] = None,
) -> None:
    """Train an encoder without labels."""
    end_with_input()
    from macl import api
    from macl import recipes as module
    from macl.api.training import check_early, folder_of

    stored = stored_recipe(Path(recipe))
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

    from macl.cli.progress import Announce, ProgressLines
    from macl.core.signals import Interrupted
    from macl.runs import Run

    before = Run(folder).metrics() if resume else []
    terminal = on_terminal()
    announced = Announce(resolved, folder)
    try:
        run = api.train(
            resolved,
            out=folder,
            resume=resume,
            devices=devices or 0,
            nodes=nodes or 0,
            callbacks=[announced, *([] if terminal else [ProgressLines()])],
            progress=terminal,
        )
    except Interrupted as stop:
        again = command_text("macl", "train", folder, "--resume")
        message(f"stopped by {stop}; continue with: {again}")
        sys.exit(130)
    rows = run.metrics()
    if rows and rows == before:
        message(
            f"{escaped(str(folder))} is finished already; extend it with --resume epochs=N (or "
            f"steps=N), where N is more than {resolved.length}"
        )
    elif rows:
        title = run.modality.monitor_title(resolved.evaluation)
        message(f"done: {escaped(_summary(rows, title))}")
    else:
        message("done: epochs=0 keeps the initial encoder, the baseline without training")
    for command in _next(folder, announced.protocols, resolved.evaluation, rows):
        message(f"next: {command}")


def _summary(rows: list[dict[str, float]], monitored: str) -> str:
    """The last value of the loss and of every metric that the method reports.

    `monitored` says what the quick evaluation measures. A floor that was not reached is left out.
    """
    from macl.losses.output import is_bin

    last = {key: value for row in rows for key, value in row.items()}
    hidden = ("step", "epoch", "lr", *(["floored"] if not last.get("floored") else []))
    names = {"monitor": f"{monitored} within the training data"}
    shown = {k: v for k, v in last.items() if k not in hidden and not is_bin(k)}
    return ", ".join(f"{names.get(k, k.replace('_', ' '))} {v:.3f}" for k, v in shown.items())


def _next(
    folder: Path,
    protocols: tuple[str, ...] | None,
    evaluation: Any,
    rows: list[dict[str, float]],
) -> list[str]:
    """The commands that will work on this run, as texts."""
    commands = []
    last = rows[-1] if rows else {}
    if last.get("gradient_scale", 1.0) < NO_GRADIENT or last.get("loss", 1.0) < NO_LOSS:
        commands.append(command_text("macl", "diagnose", folder))
    if protocols:
        own = getattr(evaluation, "protocols", protocols)
        some = [] if set(own) == set(protocols) else ["--protocol", ",".join(protocols)]
        commands.append(command_text("macl", "evaluate", folder, *some))
    elif protocols is not None:
        commands.append(command_text("macl", "embed", folder, "INPUT", "-o", "vectors.parquet"))
    return commands
