"""Engines that find the nearest of many vectors, behind one small interface.

exact    reads all vectors for every query; needs no index and no further package
faiss    in memory: IVF-PQ, HNSW, or what its `index_factory` builds
lancedb  on disk, or in an object store: IVF-PQ
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from macl.core.errors import UserError, nearest
from macl.core.installed import require
from macl.core.plugins import load_object
from macl.runs.stored import Condition, Stored

Floats = NDArray[np.float32]
Matches = tuple[Floats, NDArray[np.int64]]
"""(M, k) cosine similarities and (M, k) positions, best first; −1 where there are fewer than k."""

REFINED = 16
"""Candidates that are compared again by finer codes, for each of ten or more."""


def refined(k: int) -> int:
    """Candidates for each of `k` that are asked for."""
    return REFINED * max(1, -(-10 // k))


class Engine(abc.ABC):
    """Finds the nearest vectors by cosine similarity."""

    items: Stored
    """What the positions stand for: names and the columns of conditions."""
    width: int
    breadth: int = 0
    """How widely it searches: lists of IVF, candidates of HNSW. 0: it is exact."""

    @abc.abstractmethod
    def nearest(self, queries: Floats, k: int, where: Sequence[Condition] = ()) -> Matches:
        """The k nearest of each of (M, D) queries, among the rows of `where`."""


class Indexed(Engine):
    """An engine that builds an index first."""

    @classmethod
    @abc.abstractmethod
    def build(
        cls, stored: Stored, folder: Path, kind: str | None, store: str | None
    ) -> dict[str, Any]:
        """Write an index into the empty `folder`; returns settings for `open`. See `macl.index`."""

    @classmethod
    @abc.abstractmethod
    def open(cls, folder: Path, settings: dict[str, Any], items: Stored) -> Indexed:
        """Open what `build` wrote; `items` are all columns but the vectors."""


ENGINES = {
    "faiss": "macl.runs.engines.faiss_engine:Faiss",
    "lancedb": "macl.runs.engines.lance_engine:Lance",
}


def engine(name: str) -> type[Indexed]:
    """The class of an engine; `UserError` where it is unknown or not installed."""
    if name not in ENGINES:
        raise UserError(f"`engine=` {name}: there is no such engine.{nearest(name, ENGINES)}")
    require(name, "search")
    engine_class: type[Indexed] = load_object(ENGINES[name])
    return engine_class


def codes(width: int) -> int:
    """Bytes of a product code: one for 8 numbers, or the next smaller divisor of `width`."""
    return next(m for m in range(max(1, width // 8), 0, -1) if width % m == 0)


def unit(values: Floats) -> Floats:
    """Rows of length 1; rows that are zero or not finite become zero, similar to nothing."""
    values = np.nan_to_num(np.ascontiguousarray(values, np.float32), posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.maximum(lengths, np.finfo(np.float32).tiny)
