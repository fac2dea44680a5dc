"""One way to show that long work is moving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
        disable=not console.is_terminal,
    )
