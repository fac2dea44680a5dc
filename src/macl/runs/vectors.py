"""Embeddings on file, with the names of what was embedded."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.files import atomic_write, remove_partial, write_csv, write_text
from macl.core.limits import check_archive_arrays, check_array
from macl.core.outputs import BESIDE, ENCODER, NAMES, SKIPPED, SUFFIXES, check_output
from macl.core.shown import from_cell, to_cell
from macl.modalities.protocols import SkippedRow

ROW_GROUP = 16_384
"""Rows of a .parquet file that are read together."""

ENCODER_KEY = "encoder"
"""Where a file of vectors names the encoder that made them."""


def fingerprint(encoder: nn.Module) -> str:
    """A short text that two encoders share if they have the same weights."""
    digest = hashlib.blake2b(digest_size=12)
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class Vectors:
    """Embeddings with the names of the embedded items."""

    values: Tensor
    """(N, D) float32, row i for item i."""
    names: Sequence[str]
    """N file names, sentences or SMILES strings."""

    rows: Sequence[int] | None = None
    """The rows of the input, from 1, that the items were read from; None: item i is row i."""
    skipped: Sequence[SkippedRow] = ()
    """Rows of the input that could not be read: number, name and reason."""
    encoder: str = ""
    """The `fingerprint` of the encoder that made them, which `macl.search` compares with the run's;
    empty where a file does not say."""

    def __len__(self) -> int:
        return len(self.values)

    def save(
        self, path: str | Path, *, dtype: str = "float32", overwrite: bool = False
    ) -> list[Path]:
        """Write the vectors with their names; returns the files written, `path` first.

        .parquet  columns `name`, `row` where given, and `vector` (fixed-size list of `dtype`); with
                  int8 also `scale`, the float32 number by which a row is multiplied
        .npz      arrays `vectors`, `names` and, where given, `rows`
        .csv      columns name, row where given, and 0 … D-1; a name that a spreadsheet would take
                  for a formula (=, +, -, @ first) begins with an apostrophe
        .npy      the vectors alone; the names, one a line, in NAME.names.txt beside it, as JSON
                  where they have line breaks or begin with a quote

        Rows that could not be read are listed in NAME.skipped.csv. The fingerprint of the encoder
        is stored in the file, or beside .npy and .csv. `overwrite` replaces files.
        """
        path = Path(path)
        check_output(path, overwrite, dtype)
        remove_partial(path.parent)
        array = self.values.numpy().astype(np.float32, copy=False)
        given = {} if self.rows is None else {"row": self.rows}
        written = [path]
        if path.suffix == ".parquet":
            table = table_of(array, {"name": self.names, **given}, self.encoder, dtype)
            write_parquet(path, table)
        elif path.suffix == ".npz":
            arrays: dict[str, NDArray[Any]] = {
                "vectors": array,
                "names": np.array(list(self.names), dtype=np.str_),
                ENCODER_KEY: np.array(self.encoder),
            }
            if self.rows is not None:
                arrays["rows"] = np.asarray(self.rows, dtype=np.int64)
            atomic_write(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        elif path.suffix == ".csv":
            header = ["name", *given, *map(str, range(array.shape[1]))]
            names = map(to_cell, self.names)
            lines = zip(names, *given.values(), *array.T.tolist(), strict=True)
            write_csv(path, header, lines)
        else:
            atomic_write(path, lambda file: np.save(file, array))
            written.append(path.with_suffix(NAMES))
            write_text(written[-1], "".join(f"{_line_of(name)}\n" for name in self.names))
        if self.encoder and ENCODER in BESIDE.get(path.suffix, ()):
            written.append(path.with_suffix(ENCODER))
            write_text(written[-1], f"{self.encoder}\n")
        return [*written, *write_skipped(path, self.skipped)]


def write_skipped(path: Path, skipped: Sequence[SkippedRow]) -> list[Path]:
    """List rows without a vector beside `path`; returns the file, nothing where there are none."""
    if not skipped:
        return []
    listed = [(number, to_cell(name), to_cell(reason)) for number, name, reason in skipped]
    file = path.with_suffix(SKIPPED)
    write_csv(file, SkippedRow._fields, listed)
    return [file]


def read_vectors(path: Path) -> Vectors:
    """Read what `Vectors.save` wrote; `UserError` when it cannot be read as vectors."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: vectors are in files that end in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        raise UserError(f"{path} does not exist: `macl embed RUN INPUT -o {path}` writes it.")
    try:
        values, names, encoder = _READERS[path.suffix](path)
        array = np.require(values, np.float32, ["C", "W"])
        if array.ndim != 2 or len(array) != len(names):
            raise ValueError(f"{len(names)} names for vectors of shape {array.shape}")
    # pyarrow, numpy and csv raise different types for broken files.
    except Exception as error:
        raise UserError(f"{path} cannot be read as vectors with names: {error}") from error
    return Vectors(torch.from_numpy(array), names, encoder=encoder)


def _read_parquet(path: Path) -> tuple[Any, list[str], str]:
    with pq.ParquetFile(path) as file:
        table = file.read(columns=["name", "vector", "scale"])  # those that there are
    return numbers_of(table), table["name"].to_pylist(), encoder_of(table.schema)


def numbers_of(table: Any) -> NDArray[np.float32]:
    """(N, D) float32 of the columns `vector` and `scale` of an arrow table."""
    vectors = table["vector"].combine_chunks()
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    if flat.dtype == np.float16:  # torch converts it ten times as fast as numpy
        flat = torch.from_numpy(np.require(flat, requirements="W")).float().numpy()
    array = flat.astype(np.float32, copy=False).reshape(-1, vectors.type.list_size)
    if "scale" in table.column_names:
        array = array * table["scale"].to_numpy()[:, None]
    return array


def encoder_of(schema: Any) -> str:
    """The fingerprint in the metadata of an arrow schema; empty where it has none."""
    return (schema.metadata or {}).get(ENCODER_KEY.encode(), b"").decode()


def _read_npz(path: Path) -> tuple[Any, list[str], str]:
    check_archive_arrays(path)
    with np.load(path, allow_pickle=False) as file:
        encoder = str(file[ENCODER_KEY]) if ENCODER_KEY in file else ""
        return file["vectors"], file["names"].tolist(), encoder


def _read_npy(path: Path) -> tuple[Any, list[str], str]:
    # Names end in line feeds alone; other line breaks may be within a name.
    with path.open("rb") as file:
        check_array(file, path.stat().st_size, str(path))
    lines = path.with_suffix(NAMES).read_bytes().decode().removesuffix("\n").split("\n")
    return np.load(path, allow_pickle=False), list(map(_name_of, lines)), _encoder_beside(path)


def _line_of(name: str) -> str:
    """A name as one line: those with line breaks, or that begin with a quote, as JSON."""
    return json.dumps(name) if name.startswith('"') or {"\n", "\r"} & {*name} else name


def _name_of(line: str) -> str:
    """The name that `_line_of` was given."""
    if not line.startswith('"'):
        return line
    try:
        return str(json.loads(line))
    except ValueError:  # written by an earlier version
        return line


def _encoder_beside(path: Path) -> str:
    file = path.with_suffix(ENCODER)
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _read_csv(path: Path) -> tuple[Any, list[str], str]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    first = header.index("0")
    values = [[float(v) for v in row[first:]] for row in rows]
    return values, [from_cell(row[0]) for row in rows], _encoder_beside(path)


_READERS: dict[str, Callable[[Path], tuple[Any, list[str], str]]] = {
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
}


def write_parquet(path: Path, table: Any) -> None:
    """Write what `table_of` made.

    A dictionary of the distinct numbers would make float16 several times slower to read; it stays
    for int8, which takes four bytes a number without.
    """
    names = [name for name in table.column_names if name not in ("vector", "scale")]
    dictionary = True if "scale" in table.column_names else names
    settings = {"row_group_size": ROW_GROUP, "use_dictionary": dictionary}
    atomic_write(path, lambda file: pq.write_table(table, file, **settings))


def table_of(
    array: NDArray[np.float32],
    columns: Mapping[str, Sequence[Any]],
    encoder: str,
    dtype: str = "float32",
) -> Any:
    """An arrow table of vectors: `columns`, then `vector`, and `scale` for int8.

    A row of int8 is v·127/max|v|, rounded, and its scale max|v|/127.
    """
    kinds = {"name": pa.string(), "row": pa.int64(), "label": pa.string()}  # also where it is empty
    arrays = {name: pa.array(each, kinds.get(name)) for name, each in columns.items()}
    if dtype == "int8":
        scale = np.abs(array).max(axis=1, initial=0.0) / np.float32(127)
        array = np.rint(array / np.where(scale > 0, scale, 1)[:, None])
        arrays["scale"] = pa.array(scale)
    flat = pa.array(array.astype(dtype, copy=False).reshape(-1))
    arrays["vector"] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    return pa.table(arrays, metadata={ENCODER_KEY: encoder} if encoder else None)
