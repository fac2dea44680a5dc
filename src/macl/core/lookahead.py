"""The next item is made, in a thread, while the last one is in use."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")

_END = object()


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield `items`, one of which is made in advance; its error is raised in its place."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, iterator, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, iterator, _END)
            yield cast(T, item)
