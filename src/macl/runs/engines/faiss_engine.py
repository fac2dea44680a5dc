"""faiss: an index in memory, built by its `index_factory`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from macl.core.errors import UserError
from macl.runs.engines import Floats, Indexed, Matches, codes, refined, unit
from macl.runs.stored import Condition, Stored

INDEX = "vectors.faiss"
LEARNED = 64
"""Vectors of the sample for each list, and for each code."""


def default_kind(count: int, width: int) -> str:
    """IVF-PQ with a byte for 8 numbers, refined by a byte for each; "Flat" where there are few.

    About 2√N lists, and 39 vectors or more to learn each from, as faiss asks for.
    """
    lists = 2 ** round(math.log2(2 * math.sqrt(max(count, 1))))
    while lists * 39 > count:
        lists //= 2
    if lists < 32 or count < 39 * 256:
        return "Flat"
    return f"IVF{lists},PQ{codes(width)}x8,Refine(SQ8)"


class Faiss(Indexed):
    """An index of faiss with the names and columns of its items beside it."""

    def __init__(self, index: Any, items: Stored, breadth: int) -> None:
        self.index, self.items, self.width, self.breadth = index, items, index.d, breadth

    @classmethod
    def build(
        cls, stored: Stored, folder: Path, kind: str | None, store: str | None
    ) -> dict[str, Any]:
        """Train on a sample, then add all vectors; `kind` is a text of `faiss.index_factory`."""
        if store is not None:
            raise UserError("`store=` is for lancedb: faiss writes its index into the folder.")
        kind = kind or default_kind(len(stored), stored.width)
        try:
            index = faiss.index_factory(stored.width, kind, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"`kind=` {kind}: faiss cannot build that ({reason}).") from error
        base = _base(index)
        learned_from = LEARNED * max(256, getattr(base, "nlist", 0))
        if not index.is_trained:
            index.train(unit(stored.numbers(stored.sample(learned_from))))
        for _, values in stored.blocks():
            index.add(unit(values))
        faiss.write_index(index, str(folder / INDEX))
        return {"kind": kind, "breadth": 16}

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any], items: Stored) -> Faiss:
        """See `Engine.open`."""
        try:
            index = faiss.read_index(str(folder / INDEX))
        except RuntimeError as error:
            raise UserError(f"{folder / INDEX} cannot be read: build the index again.") from error
        return cls(index, items, int(settings["breadth"]))

    def nearest(self, queries: Floats, k: int, where: Sequence[Condition] = ()) -> Matches:
        """See `Engine.nearest`."""
        chosen, among = None, len(self.items)
        if where:
            parts = [positions for positions, _ in self.items.tables(["name"], where)]
            rows = np.concatenate([*parts, np.empty(0, np.int64)])
            chosen, among = faiss.IDSelectorBatch(rows), len(rows)
        if not among:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        # The fewer rows may be found, the wider it has to look for them.
        breadth = min(len(self.items), math.ceil(self.breadth * len(self.items) / among))
        parameters = self._parameters(breadth, chosen, k)
        scores, positions = self.index.search(unit(queries), min(k, among), params=parameters)
        return scores, positions

    def _parameters(self, breadth: int, chosen: Any, k: int) -> Any:
        """The parameters of a search; each keeps what its keywords refer to."""
        base = _base(self.index)
        selected = {} if chosen is None else {"sel": chosen}
        if isinstance(base, faiss.IndexIVF):
            parameters = faiss.SearchParametersIVF(nprobe=min(breadth, base.nlist), **selected)
        elif isinstance(base, faiss.IndexHNSW):
            parameters = faiss.SearchParametersHNSW(efSearch=breadth, **selected)
        else:
            parameters = faiss.SearchParameters(**selected)
        if base is self.index:
            return parameters
        return faiss.IndexRefineSearchParameters(
            k_factor=float(refined(k)), base_index_params=parameters
        )


def _base(index: Any) -> Any:
    """What a refined index refines; else the index."""
    return faiss.downcast_index(index.base_index) if isinstance(index, faiss.IndexRefine) else index
