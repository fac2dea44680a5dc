"""One way to show that long work is moving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_silent = ContextVar("_silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """No bars within: for work that is itself one step of a bar, which they would draw over."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` under a progress bar on stderr; silent where stderr is not a terminal."""
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
