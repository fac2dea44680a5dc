"""Rows of tables, one at a time: .csv, .tsv and .jsonl, also gzipped, and .parquet.

Rows are streamed: a table may be larger than memory. pyarrow's and pandas' readers of text guess
types from a first block and do not say which line is malformed.
"""

from __future__ import annotations

import csv
import gzip
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from macl.core.errors import SkippedInputWarning, UserError, nearest
from macl.core.limits import check_limit, check_unpacked, refuse_bomb

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DEFAULT_COLUMN = "text"
_PARQUET_BATCH = 4096


def table_kind(path: Path) -> str:
    """The suffix that says what a file holds, in lower case, without a .gz at the end."""
    suffixes = path.suffixes[:-1] if path.suffix.lower() == ".gz" else path.suffixes
    return suffixes[-1].lower() if suffixes else ""


def column_names(path: Path, encoding: str = "utf-8") -> list[str]:
    """The names of the columns, from the header, the first object or the schema."""
    with _reported(path, encoding):
        if table_kind(path) == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(path).names)
        with open_text_file(path, encoding) as file:
            return list(next(_text_rows(file, path), []))


def read_table(
    path: Path, columns: Sequence[str], encoding: str = "utf-8", header: bool | None = None
) -> Iterator[list[Any]]:
    """Yield the values of `columns` row by row; None where a row has no such value.

    Without a header, columns are called by their numbers, from 1; the first is "text" too. `header`
    None: a .csv or .tsv file has one, unless its only column begins with several words, a sentence.
    """
    with _reported(path, encoding):
        if table_kind(path) == ".parquet":
            yield from _parquet(path, columns)
            return
        with open_text_file(path, encoding) as file:
            rows = _text_rows(file, path)
            first: Any = next(rows, [])
            if isinstance(first, dict):
                columns = _chosen(columns, first, path)
                yield from ([row.get(column) for column in columns] for row in chain([first], rows))
                return
            names = first
            if header is False or (header is None and _is_sentence(first, columns, path)):
                rows = chain([first], rows)
                names = [str(number) for number in range(1, len(first) + 1)]
                if DEFAULT_COLUMN in columns:
                    names[:1] = [DEFAULT_COLUMN]
            places = [names.index(column) for column in _chosen(columns, names, path)]
            for row in rows:
                yield [row[place] if place < len(row) else None for place in places]


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, plain or gzipped."""
    with _reported(path, encoding), open_text_file(path, encoding) as file:
        yield from file


def require_columns(columns: Sequence[str], present: Iterable[str], where: Path | str) -> None:
    """`UserError` where one of the columns is not among those of the file."""
    names = list(present)
    for column in columns:
        if column not in names:
            raise UserError(f"{where} has no column {column!r}.{nearest(column, names)}")


def open_text_file(path: Path, encoding: str = "utf-8") -> IO[str]:
    """A text file, plain or gzipped; one that would unpack to far more than it holds is refused."""
    # utf-8-sig drops the byte-order mark that spreadsheets write before the first column's name.
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    if path.suffix.lower() != ".gz":
        return path.open(encoding=codec, newline="")
    refuse_bomb(path)
    return gzip.open(path, "rt", encoding=codec, newline="")


def wrong_encoding(path: Path, encoding: str, where: str) -> UserError:
    """The error for bytes that are not text in `encoding`."""
    return UserError(
        f"{path}: {where} is not {encoding} text. Set data.encoding (for example latin-1), "
        "or convert the file to UTF-8."
    )


def _chosen(columns: Sequence[str], present: Iterable[str], path: Path) -> list[str]:
    """The columns to read: of a table with a single column that one, unless another is named."""
    names = list(present)
    default = list(columns) == [DEFAULT_COLUMN] and len(names) == 1
    require_columns(names if default else columns, names, path)
    return names if default else list(columns)


@contextmanager
def _reported(path: Path, encoding: str) -> Iterator[None]:
    """Turn failures to read `path` into a `UserError` that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise wrong_encoding(path, encoding, f"byte {error.start} of a block") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _text_rows(file: IO[str], path: Path) -> Iterator[Any]:
    """Lists of a .csv or .tsv file, its header as the first; mappings of a .jsonl file."""
    if table_kind(path) != ".jsonl":
        reader = csv.reader(file, delimiter="\t" if table_kind(path) == ".tsv" else ",")
        try:
            yield from reader
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num} is not CSV: {error}.") from error
        return
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number} is not a JSON object with named fields.")
        yield row


def _is_sentence(first: Sequence[str], columns: Sequence[str], path: Path) -> bool:
    """Whether the first line of a file is data and not names; with a warning."""
    if len(first) != 1 or first[0] in columns or len(first[0].split()) < 2:
        return False
    warnings.warn(
        f"{path} has one column, and its first line is a sentence: it is read as one. Set "
        "data.header=true if it is the column's name.",
        SkippedInputWarning,
        stacklevel=2,
    )
    return True


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[list[Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        columns = _chosen(columns, parquet.read_schema(path).names, path)
        schema = parquet.read_metadata(path).schema
        leaves = [schema.column(number) for number in range(len(schema))]
        # As dictionaries: a text that is stored once can stand in any number of rows.
        texts = [leaf.path for leaf in leaves if leaf.path.split(".")[0] in columns]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            stored, unpacked = path.stat().st_size, 0
            if file.metadata.num_rows > stored:
                check_limit("items", file.metadata.num_rows, f"{path}: rows")
            for batch in file.iter_batches(_PARQUET_BATCH, columns=list(columns)):
                unpacked += sum(_unpacked_bytes(batch.column(column)) for column in columns)
                check_unpacked(unpacked, stored, path, "its texts would unpack")
                values = [batch.column(column).to_pylist() for column in columns]
                yield from map(list, zip(*values, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file: {error}") from error


def _unpacked_bytes(column: Any) -> int:
    """Bytes of the values of a column, repeated ones counted each time."""
    import pyarrow
    from pyarrow import compute

    while pyarrow.types.is_list(column.type):
        column = column.flatten()
    if not pyarrow.types.is_dictionary(column.type):
        return int(column.nbytes)
    return int(
        compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    )
