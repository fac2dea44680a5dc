"""What commands print: messages on stderr, tables on stdout."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.core.errors import PluginWarning, SkippedInputWarning
from macl.core.launch import launched_rank

if TYPE_CHECKING:
    from macl.probes.score import Score

SHORT_NAME = 24
"""Longest name in the first column that is kept on one line, so that it can be copied."""


def message(text: str) -> None:
    """Print a message once, however many processes run."""
    if launched_rank() == 0:
        print_markup(text)


def print_markup(text: str) -> None:
    """Print on stderr, with rich markup."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


def command_text(*parts: str | Path) -> str:
    """A command to copy, quoted for the shell, with markup escaped."""
    return escaped(shlex.join(map(str, parts)))


def show_warnings_as_messages() -> None:
    """Show warnings about the input as messages, and hide libraries' notices of coming changes."""
    shown, print_once = warnings.showwarning, message

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, SkippedInputWarning | PluginWarning):
            print_once(f"[yellow]warning[/]: {escaped(str(message))}")
        elif not issubclass(category, (DeprecationWarning, FutureWarning)):
            shown(message, category, *where, **more)

    warnings.showwarning = show


def escaped(text: str) -> str:
    """Text that is not meant as markup."""
    from rich.markup import escape

    return escape(text)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 1) -> None:
    """Print a table on stdout.

    In a terminal it fits the width; a table of many columns is split into blocks of one column
    each, beside the first `keys` columns. Elsewhere lines are as long as they need to be.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _width(header, rows)))
    elif len(header) > keys + 2 and _width(header, rows) > console.width:
        for column in range(keys, len(header)):
            shown = [*range(keys), column]
            block = [[row[c] for c in shown] for row in rows]
            console.print(_rich_table(title, [header[c] for c in shown], block))
            title = ""
        return
    console.print(_rich_table(title, header, rows))


def _rich_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    from rich.table import Table

    shown = Table(title=title or None, title_justify="left")
    for number, name in enumerate(header):
        whole = number == 0 and all(len(str(row[0])) <= SHORT_NAME for row in rows)
        shown.add_column(name, overflow="fold", no_wrap=whole)
    for row in rows:
        shown.add_row(*(escaped(str(cell)) for cell in row))
    return shown


def _width(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """The width of a table whose cells are not broken."""
    columns = [[header[i], *(str(row[i]) for row in rows)] for i in range(len(header))]
    longest = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    return sum(longest) + 3 * len(header) + 1


def scores_table(scores: list[Score]) -> None:
    """Print the scores of an evaluation."""
    rows = [(s.protocol, s.task, s.split, s.metric, f"{s.value:.2f}") for s in scores]
    table("Results", ("protocol", "task", "split", "metric", "value"), rows, keys=4)


def on_terminal() -> bool:
    """Whether a person watches stderr, so that progress bars make sense."""
    return sys.stderr.isatty()
