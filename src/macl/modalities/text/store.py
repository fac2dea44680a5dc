"""Texts that stay on disk: a byte range per text, read when asked for.

A corpus may be larger than memory. A `.txt` file is indexed where it lies; every other format is
streamed once into a temporary file of the needed columns and read back the same way.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from macl.modalities.records import ReadOnDemand
from macl.modalities.tables import wrong_encoding


class TextStore(ReadOnDemand[str]):
    """Text i is bytes `starts[i]:ends[i]` of a file, decoded and stripped on demand.

    Costs 16 bytes of memory per text. Safe to share with forked workers (a memory map has no file
    position to race for) and to send to spawned ones (they reopen the file by name).
    """

    def __init__(
        self,
        path: Path,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        encoding: str = "utf-8",
        owner: object = None,
    ) -> None:
        self.path, self.starts, self.ends, self.encoding = path, starts, ends, encoding
        self._owner = owner  # keeps a temporary file from being removed
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, index: int) -> str:
        """The text at a position."""
        start, end = self.starts[index], self.ends[index]
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[start:end].decode(self.encoding).strip()

    def select(self, indices: Any) -> TextStore:
        """The texts at `indices`, in that order, from the same file."""
        starts, ends = (offsets[np.asarray(indices)] for offsets in (self.starts, self.ends))
        return TextStore(self.path, starts, ends, self.encoding, self._owner)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_owner": None}


def index_lines(path: Path, encoding: str) -> tuple[TextStore, int]:
    """The non-empty lines of a file, and how many empty ones were left out.

    Every line is decoded once here, so that a wrong encoding is reported before training starts.
    """
    starts, ends, empty, position = array("q"), array("q"), 0, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            begin = position
            position += len(line)
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):  # a byte-order mark is not text
                begin, line = begin + 3, line[3:]
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                raise wrong_encoding(path, encoding, f"line {number}") from error
            if text.strip():
                starts.append(begin)
                ends.append(position)
            else:
                empty += 1
    return TextStore(path, np.array(starts), np.array(ends), encoding), empty


class Spilled(NamedTuple):
    """Rows of a table after streaming: one store per text column, and what went with them."""

    columns: list[TextStore]
    extras: list[Any]
    """The value after the text columns in each kept row (its label), when rows have one."""
    skipped: int
    """Rows left out because a text was empty or a value missing."""


def spill(rows: Iterable[Sequence[Any]], n_texts: int) -> Spilled:
    """Stream rows, of which the first `n_texts` values are texts, into a temporary file.

    The file takes the disk space of the texts and goes when the last of the stores does.
    """
    scratch = _Scratch()
    starts = [array("q") for _ in range(n_texts)]
    ends = [array("q") for _ in range(n_texts)]
    extras: list[Any] = []
    skipped = position = 0
    with scratch.path.open("wb") as file:
        for row in rows:
            texts = ["" if value is None else str(value).strip() for value in row[:n_texts]]
            if not all(texts) or None in row[n_texts:]:
                skipped += 1
                continue
            for text, start, end in zip(texts, starts, ends, strict=True):
                start.append(position)
                position += file.write(text.encode("utf-8"))
                end.append(position)
            extras.extend(row[n_texts:])
    stores = [
        TextStore(scratch.path, np.array(start), np.array(end), owner=scratch)
        for start, end in zip(starts, ends, strict=True)
    ]
    return Spilled(stores, extras, skipped)


class _Scratch:
    """A temporary file that lives as long as this object."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile(prefix="macl-texts-", delete=False) as file:
            self.path = Path(file.name)
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits the finalizer, but the file is not its own
        path.unlink(missing_ok=True)
