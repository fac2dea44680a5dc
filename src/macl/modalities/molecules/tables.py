"""Columns of the files that molecules come in: tables, and .smi files, also gzipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.errors import UserError
from macl.modalities import tables
from macl.modalities.tables import TABLE_SUFFIXES, require_columns, table_kind

if TYPE_CHECKING:
    import pandas as pd

SMILES_COLUMNS = ("smiles", "mol")
"""Usual names of a column of SMILES, in any case of letters."""

SMI = ".smi"

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that stand for a missing value in a column besides the SMILES."""


def column_names(path: Path) -> list[str]:
    """The names of the file's columns; a .smi file has the one column "smiles".

    `UserError` where the file is not there, or of another kind.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise UserError(f"{path}: {what}. Give a .csv, .tsv, .parquet or .smi file of SMILES.")
    if table_kind(path) not in (*TABLE_SUFFIXES, SMI):
        raise UserError(
            f"{path}: unknown kind of file. Give {', '.join((*TABLE_SUFFIXES, SMI))}; the text "
            "ones also with .gz."
        )
    return [SMILES_COLUMNS[0]] if table_kind(path) == SMI else tables.column_names(path)


def read_columns(
    path: Path, smiles: str | None = None, others: Sequence[str] | None = None
) -> pd.DataFrame:
    """The SMILES as the first column, empty where there is none, and the columns `others`.

    `smiles` None: the column with a usual name; `others` None: all there are. Those are numbers
    where all their values are, with NaN for a missing one.
    """
    import pandas as pd

    names = column_names(path)
    smiles = smiles_column(path, names, smiles)
    columns = [smiles, *((name for name in names if name != smiles) if others is None else others)]
    if table_kind(path) == SMI:
        require_columns(columns, names, path)
        words = first_words(tables.read_lines(path))
        header = bool(words) and words[0].lower() == SMILES_COLUMNS[0]
        return pd.DataFrame({smiles: words[header:]}, dtype=str)
    table = pd.DataFrame(list(tables.read_table(path, columns, header=True)), columns=columns)
    table[smiles] = ["" if pd.isna(value) else str(value) for value in table[smiles]]
    for other in columns[1:]:
        column = table[other].mask(table[other].isin(MISSING))
        numbers = pd.to_numeric(column, errors="coerce")
        table[other] = numbers if (numbers.isna() == column.isna()).all() else column
    return table


def smiles_column(path: Path, names: Sequence[str], wanted: str | None) -> str:
    """The column that holds the SMILES: `wanted`, or else the one with a usual name."""
    if wanted is not None:
        require_columns([wanted], names, path)
        return wanted
    for usual in SMILES_COLUMNS:
        for name in names:
            if name.strip().lower() == usual:
                return name
    raise UserError(
        f"{path}: no column is called {' or '.join(SMILES_COLUMNS)}. Set data.column to the one "
        f"that holds the SMILES: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}."
    )


def first_words(lines: Iterable[str]) -> list[str]:
    """The SMILES of lines that are a SMILES and perhaps a name."""
    return [line.split(maxsplit=1)[0] for line in lines if line.strip()]
