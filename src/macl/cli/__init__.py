"""The command line: parse, call, print. Each command imports what it needs, when it runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from macl.cli import encoders, experiments, insight, report, training
from macl.cli.console import escaped, say, show_warnings_in_words
from macl.core.errors import UserError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Contrastive representation learning whose temperature adapts to the model.",
)
for command in (
    training.recipes,
    training.train,
    encoders.evaluate,
    encoders.embed,
    encoders.export,
    experiments.compare,
    experiments.reproduce,
    insight.diagnose,
    report.report,
):
    app.command()(command)


@app.callback()
def options(
    allow_imports: Annotated[
        bool,
        typer.Option(
            "--allow-imports", help="Let recipe files and run folders import code that they name."
        ),
    ] = False,
) -> None:
    """What holds for every command."""
    if allow_imports:
        # In the environment, where the processes that a command starts find it too.
        os.environ["MACL_ALLOW_IMPORTS"] = "1"


def main() -> None:
    """Run a command; a mistake in the input is told in words, without traceback."""
    show_warnings_in_words()
    try:
        app()
    except UserError as error:
        say(f"[bold red]error[/]: {escaped(str(error))}")
        sys.exit(2)
