"""Operations on views of any modality: size, selection, concatenation, device; batches ahead.

A view is the input of an encoder. Tensors, and mappings and tuples of them, are supported here; a
modality with another type (graphs) registers its functions: `take.register(MyView)(my_take)`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import singledispatch
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from macl.core.errors import UserError

T = TypeVar("T")
_END = object()


@singledispatch
def size(view: Any) -> int:
    """Number of samples in a view."""
    if isinstance(view, Tensor):
        return len(view)
    if isinstance(view, Mapping | tuple):
        return size(view[0] if isinstance(view, tuple) else next(iter(view.values())))
    raise TypeError(_unknown(view, "size"))


@singledispatch
def take(view: Any, index: Tensor) -> Any:
    """The samples at `index`, in that order."""
    if isinstance(view, Tensor):
        return view[index]
    if isinstance(view, Mapping):
        return {key: take(value, index) for key, value in view.items()}
    if isinstance(view, tuple):
        return tuple(take(part, index) for part in view)
    raise TypeError(_unknown(view, "take"))


@singledispatch
def concat(first: Any, second: Any) -> Any | None:
    """Both views as one batch, or None where they need one forward pass each."""
    if isinstance(first, Tensor):
        joinable = isinstance(second, Tensor) and first.shape[1:] == second.shape[1:]
        return torch.cat([first, second]) if joinable else None
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return None
    joined = {key: concat(value, second[key]) for key, value in first.items()}
    return None if any(value is None for value in joined.values()) else joined


def double(view: Any) -> Any:
    """The view in double precision; integers are unchanged."""
    if isinstance(view, Tensor):
        return view.double() if view.is_floating_point() else view
    if isinstance(view, Mapping):
        return {key: double(value) for key, value in view.items()}
    raise UserError(f"precision=64 is not available for {type(view).__name__}; use precision=32.")


def move(batch: Any, device: torch.device) -> Any:
    """The batch on `device`: values with a method `to`, also in mappings, lists and tuples.

    Other values are unchanged. Copies to a GPU are made from pinned memory, unwaited for.
    """
    if hasattr(batch, "to"):
        if device.type in ("cpu", "mps", "meta"):
            return batch.to(device)
        # A batch of graphs asks its tensors itself whether they are to be copied.
        on_host = not isinstance(batch, Tensor) or batch.is_cpu
        pinned = batch.pin_memory() if hasattr(batch, "pin_memory") and on_host else batch
        return pinned.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [move(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _unknown(view: Any, function: str) -> str:
    kind = type(view).__name__
    return f"{kind} is not a known kind of view: register it with macl.core.batching.{function}."


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield `items`, one of which is made in advance; its error is raised in its place."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, iterator, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, iterator, _END)
            yield cast(T, item)
