"""lancedb: a table with an index on disk or in an object store; memory is a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb import index as kinds

from macl.core.errors import UserError, nearest
from macl.runs.engines import Floats, Indexed, Matches, codes, refined, unit
from macl.runs.stored import Condition, Stored
from macl.runs.vectors import numbers_of

KINDS = ("IvfPq", "IvfFlat", "HnswPq", "HnswSq")
TABLE = "vectors"
POSITION = "macl_position"
FEWEST = 5000
"""Fewest vectors for which an index is built; fewer are searched exactly."""


class Lance(Indexed):
    """A table of lancedb; the conditions are its own."""

    def __init__(self, table: Any, items: Stored, breadth: int) -> None:
        self.table, self.items, self.breadth = table, items, breadth
        self.width = table.schema.field("vector").type.list_size

    @classmethod
    def build(
        cls, stored: Stored, folder: Path, kind: str | None, store: str | None
    ) -> dict[str, Any]:
        """Write the table, then its index; `kind` is one of `KINDS`."""
        kind = kind or KINDS[0]
        if kind not in KINDS:
            raise UserError(f"`kind=` {kind}: lancedb has no such index.{nearest(kind, KINDS)}")
        fields = [stored.schema.field(name) for name in stored.item_columns]
        vector = pa.field("vector", pa.list_(pa.float32(), stored.width))
        schema = pa.schema([pa.field(POSITION, pa.int64()), *fields, vector])
        rows = pa.RecordBatchReader.from_batches(schema, _rows(stored, schema))
        try:
            place = lancedb.connect(store or str(folder))
            table = place.create_table(TABLE, data=rows, schema=schema)
        except (ValueError, OSError, RuntimeError) as error:
            raise UserError(f"lancedb cannot write {store or folder}: {error}") from error
        if len(stored) >= FEWEST:
            sizes = {"num_sub_vectors": codes(stored.width)} if kind.endswith("Pq") else {}
            config = getattr(kinds, kind)(distance_type="cosine", **sizes)
            table.create_index("vector", config=config)
        return {"kind": kind, "store": store, "breadth": 16}

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any], items: Stored) -> Lance:
        """See `Engine.open`."""
        place = settings["store"] or str(folder)
        try:
            table = lancedb.connect(place).open_table(TABLE)
        except (ValueError, OSError, RuntimeError) as error:
            raise UserError(f"{place} holds no table of lancedb ({error}).") from error
        return cls(table, items, int(settings["breadth"]))

    def nearest(self, queries: Floats, k: int, where: Sequence[Condition] = ()) -> Matches:
        """See `Engine.nearest`."""
        scores = np.full((len(queries), k), -np.inf, np.float32)
        positions = np.full((len(queries), k), -1, np.int64)
        for number, query in enumerate(unit(queries)):
            search = self.table.search(query).distance_type("cosine").limit(k)
            # More lists are read where the first ones hold fewer than k rows of `where`.
            search = search.minimum_nprobes(self.breadth).maximum_nprobes(0)
            search = search.ef(max(self.breadth, k)).refine_factor(refined(k))
            if where:
                search = search.where(_sql(self.items.typed(where)), prefilter=True)
            rows = search.select([POSITION, "_distance"]).to_arrow()
            positions[number, : len(rows)] = rows[POSITION].to_numpy()
            scores[number, : len(rows)] = 1 - rows["_distance"].to_numpy()
        return scores, positions


def _rows(stored: Stored, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for positions, table in stored.tables(stored.schema.names):
        flat = pa.array(unit(numbers_of(table)).reshape(-1))
        items = [column.combine_chunks() for column in table.select(stored.item_columns).columns]
        vectors = pa.FixedSizeListArray.from_arrays(flat, stored.width)
        columns = [pa.array(positions), *items, vectors]
        yield pa.record_batch(columns, schema=schema)


def _sql(where: Sequence[Condition]) -> str:
    """Conditions as the text that lancedb reads; names of columns were checked."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return f"({', '.join(map(text, value))})"
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

    return " AND ".join(
        f"{column} {'=' if operator == '==' else operator} {text(value)}"
        for column, operator, value in where
    )
