"""Rows of tables, one at a time: .csv, .tsv, .jsonl, .parquet and Hugging Face data sets."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from macl.core.errors import UserError, nearest
from macl.modalities.text.store import wrong_encoding

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_PARQUET_BATCH = 4096


def read_table(path: Path, columns: Sequence[str], encoding: str) -> Iterator[list[Any]]:
    """Yield the values of `columns` row by row; None where a row has no such value."""
    read = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    try:
        yield from read[path.suffix.lower()](path, columns, encoding)
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


def _csv(path: Path, columns: Sequence[str], encoding: str) -> Iterator[list[Any]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # utf-8-sig drops the byte-order mark that spreadsheets write before the first column's name.
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    with path.open(encoding=codec, newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            header = next(reader, [])
            _require(columns, header, path)
            places = [header.index(column) for column in columns]
            for row in reader:
                yield [row[place] if place < len(row) else None for place in places]
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num} is not CSV: {error}.") from error


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
