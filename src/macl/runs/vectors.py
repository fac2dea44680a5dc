"""Embeddings on file, with the names of what was embedded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from macl.core.errors import UserError
from macl.core.files import atomic_write

SUFFIXES = (".parquet", ".npy", ".npz")


def names_file(path: Path) -> Path:
    """Where the names go that belong to a .npy file: keep.npy → keep.names.txt."""
    return path.with_suffix(".names.txt")


def check_output(path: Path, overwrite: bool = False) -> None:
    """`UserError` unless vectors can be written to `path`; called before any long work."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: the folder {path.parent} is not there.")
    files = [path, *([names_file(path)] if path.suffix == ".npy" else [])]
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
    skipped: Sequence[object] = (),
    overwrite: bool = False,
) -> list[Path]:
    """Write (N, D) vectors and their N names.

    .parquet: columns `name` and `vector` (fixed-size list of float32); .npz: arrays `vectors` and
    `names`; .npy: the vectors alone, with the names, one a line, in NAME.names.txt beside it.
    """
    check_output(path, overwrite)
    array = vectors.numpy().astype(np.float32, copy=False)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(array.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        table = pa.table({"name": pa.array(list(names)), "vector": column})
        atomic_write(path, lambda file: pq.write_table(table, file))
    elif path.suffix == ".npz":
        known = np.array(list(names), dtype=np.str_)
        atomic_write(path, lambda file: np.savez(file, vectors=array, names=known))
    else:
        lines = "".join(f"{name}\n" for name in names)
        atomic_write(path, lambda file: np.save(file, array))
        atomic_write(names_file(path), lambda file: file.write(lines.encode()))
    return [path, names_file(path)] if path.suffix == ".npy" else [path]
