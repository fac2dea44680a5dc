"""Columns of the files that molecules come in: .csv, .tsv, .parquet and .smi, the text ones also
gzipped.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from macl.core.archives import refuse_bomb
from macl.core.errors import UserError, nearest

SMILES_COLUMNS = ("smiles", "mol")
"""Names under which a column of SMILES is found without being told, in any case of letters."""

T = TypeVar("T")


def column_names(path: Path) -> list[str]:
    """The names of the file's columns; a .smi file has the one column "smiles"."""

    def names() -> list[str]:
        if _kind(path) == ".smi":
            return [SMILES_COLUMNS[0]]
        if _kind(path) == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(path).names)
        return list(pd.read_csv(path, sep=_separator(path), nrows=0).columns)

    return _guarded(path, names)


def smiles_column(path: Path, names: Sequence[str], wanted: str | None) -> str:
    """The column that holds the SMILES: `wanted`, or else the one with a usual name."""
    if wanted is not None:
        return require_column(path, names, wanted)
    for usual in SMILES_COLUMNS:
        for name in names:
            if name.strip().lower() == usual:
                return name
    raise UserError(
        f"{path}: no column is called {' or '.join(SMILES_COLUMNS)}. Set data.column to the one "
        f"that holds the SMILES: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}."
    )


def require_column(path: Path, names: Sequence[str], column: str) -> str:
    """`column`, or a `UserError` where the file has no such column."""
    if column not in names:
        raise UserError(f"{path}: has no column {column!r}.{nearest(column, names)}")
    return column


def read_columns(path: Path, smiles: str, others: Sequence[str] = ()) -> pd.DataFrame:
    """The column `smiles` as strings, empty where there is none, and `others` as they come."""
    columns = [smiles, *others]

    def read() -> pd.DataFrame:
        if _kind(path) == ".smi":
            return pd.DataFrame({smiles: _first_words(path)}, dtype=str)
        if _kind(path) == ".parquet":
            from pyarrow import parquet

            # Without what pandas may have noted: an index of its own, which can be a column here.
            return parquet.read_table(path, columns=columns).to_pandas(ignore_metadata=True)
        return pd.read_csv(
            path,
            sep=_separator(path),
            usecols=columns,
            dtype={smiles: str},
            index_col=False,  # else a comma at the end of every line makes an index of the first
            low_memory=False,
        )

    table = _guarded(path, read)
    table[smiles] = table[smiles].fillna("").astype(str)
    return table


def _kind(path: Path) -> str:
    suffixes = path.suffixes[:-1] if path.suffix.lower() == ".gz" else path.suffixes
    return suffixes[-1].lower() if suffixes else ""


def _separator(path: Path) -> str:
    return "\t" if _kind(path) == ".tsv" else ","


def _first_words(path: Path) -> list[str]:
    """The SMILES of a .smi file, whose lines are a SMILES and perhaps a name."""
    opened: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        words = [line.split(maxsplit=1)[0] for line in file if line.strip()]
    return words[1:] if words and words[0].lower() == SMILES_COLUMNS[0] else words


def _guarded(path: Path, read: Callable[[], T]) -> T:
    """What `read` reads, its failures told as the user's."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise UserError(f"{path}: {what}. Give a .csv, .tsv, .parquet or .smi file of SMILES.")
    if _kind(path) not in (".csv", ".tsv", ".parquet", ".smi"):
        raise UserError(
            f"{path}: unknown kind of file. Give .csv, .tsv or .smi, also with .gz, or .parquet."
        )
    try:
        refuse_bomb(path)
        return read()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error
