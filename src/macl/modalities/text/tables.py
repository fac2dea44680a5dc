"""Rows of tables, one at a time: .csv, .tsv, .jsonl, .parquet and Hugging Face data sets."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from macl.core.errors import SkippedInputWarning, UserError, nearest
from macl.modalities.text.store import wrong_encoding

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_PARQUET_BATCH = 4096


def read_table(
    path: Path, columns: Sequence[str], encoding: str, header: bool | None = None
) -> Iterator[list[Any]]:
    """Yield the values of `columns` row by row; None where a row has no such value.

    Args:
        path: a file that ends in one of `TABLE_SUFFIXES`.
        columns: their names; without a header their numbers, from 1, the first being "text" too.
        encoding: of the text formats.
        header: whether the first line of a .csv or .tsv file names its columns; None: yes, unless
            it is the only column and has several words, so that it must be a sentence.
    """
    read = {".jsonl": _jsonl, ".parquet": _parquet}
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            yield from _csv(path, columns, encoding, header)
        else:
            yield from read[suffix](path, columns, encoding)
    except UnicodeDecodeError as error:
        raise wrong_encoding(path, encoding, f"byte {error.start} of a block") from error


def read_hugging_face(name: str, split: str, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield rows of the Hugging Face data set `NAME` or `NAME:CONFIGURATION`, downloading it."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"hf:{name} needs the package 'datasets': pip install datasets, or give a file."
        ) from error
    repository, _, configuration = name.partition(":")
    try:
        data = datasets.load_dataset(repository, configuration or None, split=split)
    except Exception as error:  # the library raises a different type for each thing it lacks
        raise UserError(f"hf:{name}, split {split!r}, could not be loaded: {error}") from error
    _require(columns, data.column_names, f"hf:{name}")
    for row in data:
        yield [row[column] for column in columns]


def _csv(
    path: Path, columns: Sequence[str], encoding: str, header: bool | None
) -> Iterator[list[Any]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # utf-8-sig drops the byte-order mark that spreadsheets write before the first column's name.
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    with path.open(encoding=codec, newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            first = next(reader, [])
            rows: Iterable[list[str]] = reader
            if header is None:
                header = _is_header(first, columns, path)
            if not header:
                rows, first = chain([first], reader), _numbered(first, columns)
            _require(columns, first, path)
            places = [first.index(column) for column in columns]
            for row in rows:
                yield [row[place] if place < len(row) else None for place in places]
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num} is not CSV: {error}.") from error


def _is_header(first: Sequence[str], columns: Sequence[str], path: Path) -> bool:
    """Whether the first line of a file names its columns; a warning where it does not."""
    if len(first) != 1 or first[0] in columns or len(first[0].split()) < 2:
        return True
    warnings.warn(
        f"{path} has one column, and its first line is a sentence: it is read as one. Set "
        "data.header=true if it is the column's name.",
        SkippedInputWarning,
        stacklevel=2,
    )
    return False


def _numbered(first: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Names for the columns of a file without a header."""
    names = [str(number) for number in range(1, len(first) + 1)]
    return ["text", *names[1:]] if "text" in columns else names


def _jsonl(path: Path, columns: Sequence[str], encoding: str) -> Iterator[list[Any]]:
    checked = False
    with path.open(encoding=encoding) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}: line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number} is not a JSON object with named fields.")
            if not checked:
                _require(columns, row, path)
                checked = True
            yield [row.get(column) for column in columns]


def _parquet(path: Path, columns: Sequence[str], encoding: str) -> Iterator[list[Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _require(columns, file.schema_arrow.names, path)
            for batch in file.iter_batches(_PARQUET_BATCH, columns=list(columns)):
                values = [batch.column(column).to_pylist() for column in columns]
                yield from map(list, zip(*values, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file: {error}") from error


def _require(columns: Sequence[str], present: Iterable[str], where: Path | str) -> None:
    names = list(present)
    for column in columns:
        if column not in names:
            raise UserError(f"{where} has no column {column!r}.{nearest(column, names)}")
