"""What commands print: messages on stderr, tables on stdout."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.cli.flags import with_flags
from macl.core.errors import SkippedInputWarning
from macl.core.launch import launched_rank
from macl.core.shown import shown

if TYPE_CHECKING:
    from macl.probes.score import Score

WIDTH = 100
"""Columns of a table that is not printed to a terminal."""

SHORT_NAME = 24
"""Longest name in the first column that is kept on one line, so that it can be copied."""


def message(text: str, label: str = "") -> None:
    """Print a message once, however many processes run."""
    if launched_rank() == 0:
        print_labeled(text, label)


def print_labeled(text: str, label: str) -> None:
    """Print a text on stderr, after a label with rich markup."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(label + escape(shown(text)))


def written(*files: Path) -> None:
    """Name the files that a command wrote."""
    for file in files:
        message(f"written: {file}")


def show_warnings_as_messages() -> None:
    """Show warnings about the input as messages, and hide libraries' notices of coming changes."""
    usual, print_once = warnings.showwarning, message

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, SkippedInputWarning):
            print_once(with_flags(str(message)), "[yellow]warning[/]: ")
        elif not issubclass(category, (DeprecationWarning, FutureWarning)):
            usual(shown(str(message)), category, *where, **more)

    warnings.showwarning = show


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 1) -> None:
    """Print a table on stdout; where it is too wide, in blocks of the first `keys` and one more."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    drawn = _rich_table(title, header, rows)
    unbroken = console.measure(drawn, options=console.options.update(max_width=sys.maxsize)).maximum
    if len(header) <= keys + 2 or unbroken <= console.width:
        console.print(drawn)
        return
    for column in range(keys, len(header)):
        some = [*range(keys), column]
        block = [[row[c] for c in some] for row in rows]
        console.print(_rich_table(title, [header[c] for c in some], block))
        title = ""


def _rich_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=escape(shown(title)) or None, title_justify="left")
    for number, name in enumerate(header):
        whole = number == 0 and all(len(str(row[0])) <= SHORT_NAME for row in rows)
        drawn.add_column(escape(shown(name)), overflow="fold", no_wrap=whole)
    for row in rows:
        drawn.add_row(*(escape(shown(str(cell))) for cell in row))
    return drawn


def scores_table(scores: list[Score]) -> None:
    """Print the scores of an evaluation, then how the encoder saw its inputs."""
    from macl.probes.score import score_settings

    rows = [
        (s.protocol, s.task, s.split, s.metric, f"{s.value:.2f}", score_settings(s.details))
        for s in scores
    ]
    table("Results", ("protocol", "task", "split", "metric", "value", "with"), rows, keys=5)
    for text in filter(None, dict.fromkeys(_inputs(s.details) for s in scores)):
        message(text)


def _inputs(details: Mapping[str, Any]) -> str:
    """How the encoder saw its inputs: "encoder input: size 64, mean …; float32 on cpu"."""
    parts = []
    for key, value in details.get("input", {}).items():
        many = isinstance(value, list | tuple)
        text = "/".join(f"{each:g}" for each in value) if many else value
        parts += [] if value is None else [f"{key} {text}"]
    seen = [f"encoder input: {', '.join(parts)}"] if parts else []
    device = [f"{details['precision']} on {details['device']}"] if "device" in details else []
    return "; ".join(seen + device)
