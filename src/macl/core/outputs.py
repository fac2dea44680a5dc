"""The files that results are written to, checked before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from macl.core.errors import UserError

SUFFIXES = (".parquet", ".npy", ".npz", ".csv")
"""Of vectors."""

MINED_SUFFIXES = (".parquet", ".jsonl", ".csv")
"""Of what `macl mine` finds."""

DTYPES = ("float32", "float16", "int8")
"""How the numbers of a .parquet file may be stored; int8 has a column `scale` beside them."""


NAMES, ENCODER, SKIPPED = ".names.txt", ".encoder.txt", ".skipped.csv"
"""Endings of the files beside keep.npy: keep.names.txt has the names, keep.encoder.txt the
fingerprint of the encoder, keep.skipped.csv the rows of the input that have no vector."""

BESIDE = {".npy": (NAMES, ENCODER), ".csv": (ENCODER,)}
"""What a format does not hold itself."""


def check_output(path: Path, overwrite: bool = False, dtype: str = "float32") -> None:
    """`UserError` unless vectors can be written to `path`; called before any long work.

    Nothing is overwritten without `overwrite`: not the file, not those beside it.
    """
    check_dtype(dtype)
    if dtype != "float32" and path.suffix != ".parquet":
        raise UserError(f"`dtype=` {dtype} is for .parquet files; {path} holds float32.")
    check_file(path, SUFFIXES, overwrite, (*BESIDE.get(path.suffix, ()), SKIPPED))


def check_file(
    path: Path, suffixes: Sequence[str], overwrite: bool, beside: Sequence[str] = ()
) -> None:
    """`UserError` unless `path`, and files with the endings `beside`, can be written."""
    if path.suffix not in suffixes:
        raise UserError(f"cannot write {path}: the name must end in {', '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: the folder {path.parent} is not there.")
    endings = (path.suffix, *beside)
    there = [str(file) for file in map(path.with_suffix, endings) if file.exists()]
    if there and not overwrite:
        raise UserError(
            f"{', '.join(there)}: already there. Choose another name, or `overwrite=True`."
        )


def check_dtype(dtype: str) -> None:
    """`UserError` unless numbers can be stored in this way."""
    if dtype not in DTYPES:
        raise UserError(f"`dtype=` {dtype}: there are {', '.join(DTYPES)}.")
