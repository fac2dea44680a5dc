"""`macl recipes` and `macl train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import DataOption, Overrides, stored_recipe
from macl.cli.console import command_text, escaped, message, on_terminal, table
from macl.core.errors import UserError
from macl.core.launch import end_with_input


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
        print(path.read_text(encoding="utf-8"))
        return
    rows = []
    for shipped in module.available():
        values = module.read(shipped)
        rows.append([values.get(key, "") for key in ("name", "modality", "description", "needs")])
    table("Recipes", ("name", "modality", "what", "needs"), rows)


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
    from macl.api.training import new_folder

    stored = stored_recipe(Path(recipe))
    if resume and out is None:
        if stored is None:
            raise UserError(f"--resume: {recipe} is no run folder; give it with --out.")
        out = Path(recipe)
    elif stored is not None and out is None:
        raise UserError(
            f"{recipe} is a run folder. Add --resume to continue it, or --out FOLDER to train its "
            "recipe again from the start."
        )
    if resume and out is not None and stored_recipe(out) is None:
        raise UserError(f"{out} holds no run to resume; leave --resume out to start one.")
    given = module.parse(overrides or (), module.read(stored or recipe))
    resolved = api.resolve(recipe, data=data, overrides=given)  # before anything heavy is imported
    folder = out or new_folder(resolved.name)

    from macl.cli.progress import Announce, ProgressLines
    from macl.core.signals import Interrupted
    from macl.runs import Run

    before = Run(folder).metrics() if resume else []
    terminal = on_terminal()
    try:
        run = api.train(
            resolved,
            out=folder,
            resume=resume,
            devices=devices or 0,
            nodes=nodes or 0,
            callbacks=[Announce(resolved, folder), *([] if terminal else [ProgressLines()])],
            progress=terminal,
        )
    except Interrupted as stop:
        again = command_text("macl", "train", folder, "--resume")
        message(f"stopped by {stop}; continue with: {again}")
        sys.exit(130)
    rows = run.metrics()
    if rows and rows == before:
        message(
            f"{escaped(str(folder))} is finished already; extend it with --resume epochs=N, where "
            f"N is more than {resolved.epochs}"
        )
    elif rows:
        message(f"done: {escaped(_summary(rows))}")
    message(f"next: {command_text('macl', 'evaluate', folder)}")


def _summary(rows: list[dict[str, float]]) -> str:
    """The last value of the loss and of every figure that the method reports."""
    from macl.losses.spread import is_bin

    last = {key: value for row in rows for key, value in row.items()}
    hidden = ("step", "epoch", "lr")
    shown = {k: v for k, v in last.items() if k not in hidden and not is_bin(k)}
    return ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in shown.items())
