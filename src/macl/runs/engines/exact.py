"""The exact search: every vector is compared, a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from macl.core.similarity import MOST_PRODUCTS, nearest_by_cosine
from macl.runs.engines import Engine, Floats, Matches
from macl.runs.stored import Condition, Stored

MOST_ROWS, LEAST_ROWS = 65_536, 1024
"""Of a block."""

KEPT = 2 << 30
"""Bytes of float32 vectors that may stay in memory from one search to the next."""


class Exact(Engine):
    """Searches stored vectors as they are.

    The first search reads them a block at a time. The second keeps them for later ones, if they
    take at most `KEPT` bytes as float32.
    """

    def __init__(self, items: Stored) -> None:
        self.items, self.width = items, items.width
        self.searched = False
        self.kept: tuple[Tensor, Tensor] | None = None
        """All vectors (N, D) and their lengths (N,)."""

    def nearest(self, queries: Floats, k: int, where: Sequence[Condition] = ()) -> Matches:
        """See `Engine.nearest`; a vector that is zero or not finite comes last."""
        asked = torch.from_numpy(np.array(queries, np.float32))  # a copy: they may be read-only
        values = torch.empty(len(asked), 0)
        positions = torch.empty(len(asked), 0, dtype=torch.int64)
        rows = min(MOST_ROWS, max(LEAST_ROWS, MOST_PRODUCTS // len(asked)))
        for here, block, lengths in self._blocks(where, rows):
            cosines, places = nearest_by_cosine(asked, block, k, lengths)
            values = torch.cat([values, cosines], dim=1)
            positions = torch.cat([positions, here[places]], dim=1)
            values, best = values.topk(min(k, values.shape[1]), dim=1)
            positions = positions.gather(1, best)
        return values.numpy(), positions.numpy()

    def _blocks(
        self, where: Sequence[Condition], rows: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(positions, vectors, their lengths where they are known) of at most `rows` rows each."""
        if self.searched and self.kept is None and 4 * len(self.items) * self.width <= KEPT:
            vectors = torch.empty(len(self.items), self.width)
            for here, block in self.items.blocks():
                vectors[_tensor(here)] = _tensor(block)
            self.kept = vectors, vectors.norm(dim=1)
        self.searched = True
        if self.kept is None:
            for here, block in self.items.blocks(where, rows):
                yield _tensor(here), _tensor(block), None
            return
        vectors, lengths = self.kept
        if not where:
            everything = torch.arange(len(vectors)).split(rows)
            yield from zip(everything, vectors.split(rows), lengths.split(rows), strict=True)
            return
        for here, _ in self.items.tables(["name"], where, rows):
            chosen = _tensor(here)
            yield chosen, vectors[chosen], lengths[chosen]


def _tensor(block: NDArray[Any]) -> Tensor:
    """Without a copy; arrow's memory is read-only, which torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(block)
