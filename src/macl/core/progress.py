"""Progress bars on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from macl.core.launch import launched_rank

T = TypeVar("T")

SECONDS = 30.0
"""Between two lines, where there is no bar."""

_silent = ContextVar("_silent", default=False)


def bars_fit() -> bool:
    """Whether bars can be drawn: on a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def silence() -> Iterator[None]:
    """No progress bars within this context: they would overwrite the bar of the outer loop."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` with a progress bar on stderr; a line every half minute off a terminal."""
    if _silent.get():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    if console.is_terminal:
        yield from rich_track(
            items, description=description, total=total, console=console, transient=True
        )
        return
    due = time.monotonic() + SECONDS
    for done, item in enumerate(items):
        if time.monotonic() > due and launched_rank() == 0:
            due = time.monotonic() + SECONDS
            console.print(f"{description}: {done:,}" + (f" of {total:,}" if total else ""))
        yield item
