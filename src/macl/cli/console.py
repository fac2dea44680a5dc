"""What commands print: messages on stderr, tables on stdout."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from macl.core.errors import SkippedInputWarning
from macl.core.launch import launched_rank

if TYPE_CHECKING:
    from macl.probes.score import Score


def tell(message: str) -> None:
    """Say it once, however many processes run."""
    if launched_rank() == 0:
        say(message)


def say(message: str) -> None:
    """On stderr, with rich markup."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(message)


def show_warnings_in_words() -> None:
    """Warnings about the input come as messages; what libraries will change is not shown."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, SkippedInputWarning):
            tell(f"[yellow]warning[/]: {escaped(str(message))}")
        elif not issubclass(category, (DeprecationWarning, FutureWarning)):
            shown(message, category, *where, **more)

    warnings.showwarning = show


def escaped(text: str) -> str:
    """Text that is not meant as markup."""
    from rich.markup import escape

    return escape(text)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for number, name in enumerate(header):
        # Names are there to be copied: a short one in front stays in one piece.
        whole = number == 0 and all(len(str(row[0])) <= 24 for row in rows)
        shown.add_column(name, overflow="fold", no_wrap=whole)
    for row in rows:
        shown.add_row(*(escaped(str(cell)) for cell in row))
    Console().print(shown)


def scores_table(scores: list[Score]) -> None:
    """The scores of an evaluation."""
    rows = [(s.protocol, s.task, s.split, s.metric, f"{s.value:.2f}") for s in scores]
    table("Results", ("protocol", "task", "split", "metric", "value"), rows)
