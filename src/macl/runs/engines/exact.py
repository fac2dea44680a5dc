"""The exact search: every vector is read, a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from macl.core.similarity import MOST_PRODUCTS, nearest_by_cosine
from macl.runs.engines import Engine, Floats, Matches
from macl.runs.stored import Condition, Stored

MOST_ROWS, LEAST_ROWS = 65_536, 1024
"""Of a block."""


class Exact(Engine):
    """Searches stored vectors as they are. Memory is that of a block, however many there are."""

    name = "exact"

    def __init__(self, items: Stored) -> None:
        self.items, self.width = items, items.width

    def nearest(self, queries: Floats, k: int, where: Sequence[Condition] = ()) -> Matches:
        """See `Engine.nearest`; a vector that is zero or not finite comes last."""
        asked = torch.from_numpy(np.array(queries, np.float32))  # a copy: they may be read-only
        values = torch.empty(len(asked), 0)
        positions = torch.empty(len(asked), 0, dtype=torch.int64)
        rows = min(MOST_ROWS, max(LEAST_ROWS, MOST_PRODUCTS // len(asked)))
        for here, block in self.items.blocks(where, rows):
            cosines, places = nearest_by_cosine(asked, _tensor(block), k)
            values = torch.cat([values, cosines], dim=1)
            positions = torch.cat([positions, _tensor(here)[places]], dim=1)
            values, best = values.topk(min(k, values.shape[1]), dim=1)
            positions = positions.gather(1, best)
        return values.numpy(), positions.numpy()


def _tensor(block: NDArray[Any]) -> torch.Tensor:
    """Without a copy; arrow's memory is read-only, which torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(block)
