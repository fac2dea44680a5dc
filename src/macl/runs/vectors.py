"""Embeddings on file, with the names of what was embedded."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from macl.core.archives import refuse_bomb
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.modalities.protocols import SkippedRow

SUFFIXES = (".parquet", ".npy", ".npz", ".csv")


def names_file(path: Path) -> Path:
    """Where the names go that belong to a .npy file: keep.npy → keep.names.txt."""
    return path.with_suffix(".names.txt")


def skipped_file(path: Path) -> Path:
    """Where the rows of the input are listed that have no vector: keep.npy → keep.skipped.csv."""
    return path.with_suffix(".skipped.csv")


def check_output(path: Path, overwrite: bool = False) -> None:
    """`UserError` unless vectors can be written to `path`; called before any long work.

    Nothing is overwritten without `overwrite`: not the file, not those beside it.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: the folder {path.parent} is not there.")
    files = [path, *([names_file(path)] if path.suffix == ".npy" else []), skipped_file(path)]
    there = [str(file) for file in files if file.exists()]
    if there and not overwrite:
        raise UserError(
            f"{', '.join(there)}: already there. Choose another name, or allow it with --overwrite."
        )


def write_vectors(
    path: Path,
    vectors: Tensor,
    names: Sequence[str],
    *,
    rows: Sequence[int] | None = None,
    skipped: Sequence[SkippedRow] = (),
    overwrite: bool = False,
) -> list[Path]:
    """Write (N, D) vectors and their N names; returns the files written, `path` first.

    .parquet  columns `name`, `row` where given, and `vector` (fixed-size list of float32)
    .npz      arrays `vectors`, `names` and, where given, `rows`
    .csv      columns name, row where given, and 0 … D-1
    .npy      the vectors alone; the names, one a line, in NAME.names.txt beside it

    Args:
        path: ends in one of `SUFFIXES`.
        vectors: (N, D).
        names: N of them.
        rows: the rows of the user's file that they come from, from 1.
        skipped: rows that could not be read; they are listed in NAME.skipped.csv.
        overwrite: replace files that are there already.
    """
    check_output(path, overwrite)
    array = vectors.numpy().astype(np.float32, copy=False)
    written = [path]
    if path.suffix == ".parquet":
        _write_parquet(path, array, names, rows)
    elif path.suffix == ".npz":
        arrays: dict[str, NDArray[Any]] = {
            "vectors": array,
            "names": np.array(list(names), dtype=np.str_),
        }
        if rows is not None:
            arrays["rows"] = np.asarray(rows, dtype=np.int64)
        atomic_write(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    elif path.suffix == ".csv":
        numbers = [[]] * len(names) if rows is None else [[row] for row in rows]
        header = ["name", *([] if rows is None else ["row"]), *map(str, range(array.shape[1]))]
        lines = zip(names, numbers, array.tolist(), strict=True)
        _write_csv(path, header, ([name, *row, *vector] for name, row, vector in lines))
    else:
        text = "".join(f"{name}\n" for name in names)
        atomic_write(path, lambda file: np.save(file, array))
        atomic_write(names_file(path), lambda file: file.write(text.encode()))
        written.append(names_file(path))
    if skipped:
        _write_csv(skipped_file(path), SkippedRow._fields, skipped)
        written.append(skipped_file(path))
    return written


class StoredVectors(NamedTuple):
    """Vectors read from a file, with the names of what was embedded."""

    values: Tensor
    """(N, D) float32."""
    names: list[str]


def read_vectors(path: Path) -> StoredVectors:
    """Read what `write_vectors` wrote; `UserError` when it cannot be read as vectors."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: vectors are in files that end in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        raise UserError(f"{path} does not exist: `macl embed RUN INPUT -o {path}` writes it.")
    try:
        values, names = _READERS[path.suffix](path)
        array = np.require(values, np.float32, ["C", "W"])
        if array.ndim != 2 or len(array) != len(names):
            raise ValueError(f"{len(names)} names for vectors of shape {array.shape}")
    # pyarrow, numpy and csv raise different types for broken files.
    except Exception as error:
        raise UserError(f"{path} cannot be read as vectors with names: {error}") from error
    return StoredVectors(torch.from_numpy(array), names)


def _read_parquet(path: Path) -> tuple[Any, list[str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["name", "vector"])
    vectors = table["vector"].combine_chunks()
    width = vectors.type.list_size
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, width), table["name"].to_pylist()


def _read_npz(path: Path) -> tuple[Any, list[str]]:
    refuse_bomb(path)
    with np.load(path, allow_pickle=False) as file:
        return file["vectors"], file["names"].tolist()


def _read_npy(path: Path) -> tuple[Any, list[str]]:
    # Names end in line feeds alone; other line breaks may be within a name.
    names = names_file(path).read_bytes().decode().removesuffix("\n").split("\n")
    return np.load(path, allow_pickle=False), names


def _read_csv(path: Path) -> tuple[Any, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    first = header.index("0")
    return [[float(v) for v in row[first:]] for row in rows], [row[0] for row in rows]


_READERS: dict[str, Callable[[Path], tuple[Any, list[str]]]] = {
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
}


def _write_parquet(
    path: Path, array: NDArray[np.float32], names: Sequence[str], rows: Sequence[int] | None
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"name": pa.array(list(names))}
    if rows is not None:
        columns["row"] = pa.array(list(rows), pa.int64())
    flat = pa.array(array.reshape(-1))
    columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    table = pa.table(columns)
    atomic_write(path, lambda file: pq.write_table(table, file))


def _write_csv(path: Path, header: Sequence[str], lines: Any) -> None:
    def write(file: Any) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(lines)
        text.detach()

    atomic_write(path, write)
