"""The application: its commands, and the options that hold for every command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from macl.cli import adaptation, encoders, experiments, mining, training, tuning, vectors


class _NoFlagTypes:
    """Leaves out the type of flags in the help: they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Command(_NoFlagTypes, TyperCommand):
    pass


class _Group(_NoFlagTypes, TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Contrastive representation learning whose temperature adapts to the model.",
)
for command in (
    training.recipes,
    training.train,
    adaptation.adapt,
    encoders.evaluate,
    vectors.embed,
    vectors.index,
    vectors.search,
    mining.mine,
    encoders.export,
    experiments.compare,
    tuning.tune,
    experiments.reproduce,
    encoders.diagnose,
    encoders.report,
):
    app.command(cls=_Command)(command)


def _show_version(asked: bool) -> None:
    if asked:
        from macl import __version__

        print(f"macl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    allow_imports: bool = Option(
        False, "--allow-imports", help="Let recipe files and run folders import code they name."
    ),
    allow_outside: list[Path] | None = Option(
        None,
        metavar="DIR",
        help="Let paths in data lead to this folder; else they stay inside the data set. May be "
        "repeated.",
    ),
    version: bool = Option(
        False, "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
    ),
) -> None:
    """Options for every command."""
    if allow_imports:
        # In the environment, where the processes that a command starts find it too.
        os.environ["MACL_ALLOW_IMPORTS"] = "1"
    if allow_outside:
        os.environ["MACL_ALLOW_OUTSIDE"] = os.pathsep.join(map(os.path.abspath, allow_outside))
