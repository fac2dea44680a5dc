"""Vectors on file, read a block at a time: a folder of parts, a file, or what is in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from macl.core.errors import UserError, nearest
from macl.runs.parts import MANIFEST, Plan
from macl.runs.vectors import ROW_GROUP, Vectors, encoder_of, numbers_of, read_vectors, table_of

Condition = tuple[str, str, Any]
"""(column, operator, value): ("label", "==", "cat"); operators are ==, !=, <, <=, >, >= and in."""

_CONDITION = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>)\s*(.*)")


def parse_condition(text: str) -> Condition:
    """From "label=cat", "row<1000", or "label=cat,dog" for either; values are texts."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UserError(f"`where=` {text}: write column=value, such as label=cat or row<1000.")
    column, operator, value = match.groups()
    if operator in ("=", "==") and "," in value:
        return column, "in", [each.strip() for each in value.split(",")]
    return column, "==" if operator == "=" else operator, value


class Stored:
    """Rows with a vector, a name and other columns, in arrow tables or .parquet files.

    Args:
        title: what a message calls them.
        sources: .parquet files, or arrow tables in memory.
    """

    def __init__(self, title: str, sources: Sequence[Any]) -> None:
        if not sources:
            raise UserError(f"{title} holds no vectors.")
        import pyarrow.dataset as ds  # imports pandas, which embedding has no use for

        try:
            data = ds.dataset(list(sources))
            whole = list(data.get_fragments())
            # Of a file each group of rows, which is read as a whole.
            groups = (x.split_by_row_group() if hasattr(x, "row_groups") else [x] for x in whole)
            self.parts = [part for group in groups for part in group]
            encoders = {encoder_of(each.physical_schema) for each in whole}
        # pyarrow raises several types for broken files.
        except Exception as error:
            raise UserError(f"{title} cannot be read as vectors with names: {error}") from error
        self.schema = data.schema
        if "name" not in self.schema.names:
            raise UserError(f"{title} has no column `name`: it is not of `macl embed`.")
        self.encoder = encoder_of(self.schema)
        if encoders - {self.encoder}:
            raise UserError(f"the parts of {title} were made by different encoders.")
        self.starts = np.cumsum([0, *map(_count, self.parts)])

    @classmethod
    def open(cls, path: Path) -> Stored:
        """What `macl embed` wrote to `path`; `UserError` where parts are missing."""
        if path.suffix == ".parquet" and path.is_file():
            return cls(str(path), [path])
        if not path.is_dir():
            return cls.of(read_vectors(path))
        plan = Plan.read(path)
        if plan is not None and (missing := plan.missing(path)):
            raise UserError(
                f"{path} is not complete: {len(missing)} of {plan.parts} parts are "
                "missing. Give the command that embeds once more, which makes them."
            )
        files = sorted(path.glob("part-*.parquet" if plan is not None else "*.parquet"))
        if not files:
            raise UserError(f"{path} has neither {MANIFEST} nor .parquet files with vectors.")
        return cls(str(path), files)

    @classmethod
    def of(cls, vectors: Vectors) -> Stored:
        """Vectors in memory."""
        array = vectors.values.float().cpu().numpy()
        return cls("the vectors", [table_of(array, {"name": vectors.names}, vectors.encoder)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self.schema.field("vector").type.list_size)

    @property
    def item_columns(self) -> list[str]:
        """All columns but those of the numbers."""
        return [name for name in self.schema.names if name not in ("vector", "scale")]

    @property
    def _number_columns(self) -> list[str]:
        return [name for name in self.schema.names if name in ("vector", "scale")]

    def tables(
        self, columns: Sequence[str], where: Sequence[Condition] = (), rows: int = ROW_GROUP
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """(positions, arrow table of `columns`) of at most `rows` rows each, those of `where`."""
        typed = self.typed(where)
        expression = pq.filters_to_expression(typed) if typed else None
        wanted = [*dict.fromkeys([*columns, *(column for column, _, _ in typed)])]
        for start, part in zip(self.starts, self.parts, strict=False):
            # Read ahead of its use is one batch: arrow would hold sixteen.
            for batch in part.to_batches(self.schema, wanted, batch_size=rows, batch_readahead=1):
                positions = np.arange(start, start + len(batch))
                start += len(batch)
                table = pa.Table.from_batches([batch])
                if expression is not None:
                    table = table.append_column(" ", pa.array(positions)).filter(expression)
                    positions = table.column(" ").to_numpy()
                if len(table):
                    yield positions, table.select(columns)

    def blocks(
        self, where: Sequence[Condition] = (), rows: int = ROW_GROUP
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(positions, (n, D) float32) of at most `rows` rows each."""
        for positions, table in self.tables(self._number_columns, where, rows):
            yield positions, numbers_of(table)

    def take(self, positions: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """The rows at `positions`, in that order, as an arrow table of `columns`."""
        order = np.argsort(positions, kind="stable")
        wanted, tables = positions[order], [self.schema.empty_table().select(columns)]
        for part, start, end in zip(self.parts, self.starts, self.starts[1:], strict=False):
            own = wanted[(wanted >= start) & (wanted < end)] - start
            if len(own):
                tables.append(part.to_table(self.schema, columns).take(own))
        return pa.concat_tables(tables).take(np.argsort(order, kind="stable"))

    def sample(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        """Ascending positions of at most `count` rows, the same every time."""
        chosen = np.random.default_rng(seed).choice(len(self), min(count, len(self)), replace=False)
        return np.sort(chosen)

    def numbers(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, D) float32: the vectors of some rows."""
        return numbers_of(self.take(positions, self._number_columns))

    def write_items(self, file: Path) -> None:
        """Write all columns but those of the numbers."""
        schema = self.schema.empty_table().select(self.item_columns).schema
        with pq.ParquetWriter(file, schema) as writer:
            for _, table in self.tables(self.item_columns):
                writer.write_table(table)

    def typed(self, where: Sequence[Condition]) -> list[Condition]:
        """The conditions with values of the type of their columns; `UserError` for a wrong one."""
        conditions = []
        for column, operator, value in where:
            if column not in self.item_columns:
                known = nearest(column, self.item_columns)
                raise UserError(f"`where=` {column}: there is no such column.{known}")
            kind = self.schema.field(column).type
            try:
                listed = value if isinstance(value, list | tuple) else [value]
                cast = [pa.scalar(each).cast(kind).as_py() for each in listed]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UserError(f"`where=` {column}{operator}{value}: {error}") from error
            conditions.append((column, operator, cast if operator == "in" else cast[0]))
        return conditions


def _count(part: Any) -> int:
    if not hasattr(part, "row_groups"):
        return int(part.count_rows())
    # For a part of a file `count_rows` gives the rows of the whole file.
    return sum(group.num_rows for group in part.row_groups)
