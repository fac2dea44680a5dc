"""A method's views encoded in chunks; see `macl.chunks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from macl.chunks import in_chunks
from macl.core import batching
from macl.methods import Method


def encode_in_chunks(
    method: Method, views: Sequence[Any], chunk_size: int | None
) -> tuple[Tensor, ...]:
    """`method.encode(*views)`, with activations in memory for `chunk_size` samples at a time.

    The method encodes samples independently of each other, except in batch normalization.
    """
    n = batching.size(views[0])
    if chunk_size is None or n <= chunk_size:
        return method.encode(*views)

    def encode(rows: Tensor) -> tuple[Tensor, ...]:
        return method.encode(*(batching.take(view, rows) for view in views))

    return in_chunks(encode, n, chunk_size, method)
