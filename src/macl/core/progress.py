"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_silent = ContextVar("_silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """No progress bars within this context: they would overwrite the bar of the outer loop."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` with a progress bar on stderr; no bar where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    yield from rich_track(
        items,
        description=description,
        total=total,
        console=console,
        transient=True,
        disable=_silent.get() or not console.is_terminal,
    )
