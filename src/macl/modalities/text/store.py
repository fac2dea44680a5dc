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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macl.modalities.records import ReadOnDemand
from macl.modalities.tables import wrong_encoding

Stored = tuple[list[ReadOnDemand[str]], list[Any], int]
"""Columns of texts, which cost 16 bytes of memory each; the label of each row, where rows have one;
and how many lines or rows were left out."""


class TextFile:
    """Reads (start, end), a range of bytes, of a file as a text without blanks around it.

    A memory map has no position that forked workers could race for; spawned ones reopen the file. A
    `temporary` file goes with this object.
    """

    def __init__(self, path: Path, encoding: str = "utf-8", temporary: bool = False) -> None:
        self.path, self.encoding = path, encoding
        self._map: mmap.mmap | None = None
        if temporary:
            weakref.finalize(self, _remove, path, os.getpid())

    def __call__(self, place: tuple[int, int]) -> str:
        """The text between two positions."""
        start, end = place
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[start:end].decode(self.encoding).strip()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}


def index_lines(path: Path, encoding: str) -> Stored:
    """The non-empty lines of a file, all decoded once: a wrong encoding is reported at once."""
    places, empty, position = array("q"), 0, 0
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
                places.extend((begin, position))
            else:
                empty += 1
    return [ReadOnDemand(TextFile(path, encoding), _rows(places, 2))], [], empty


def spill(rows: Iterable[Sequence[Any]], n_texts: int) -> Stored:
    """Stream rows, of which the first `n_texts` values are texts, into a temporary file.

    It goes with the last column of them. Rows with an empty text or a missing value are left out.
    """
    with tempfile.NamedTemporaryFile(prefix="macl-texts-", delete=False) as file:
        read = TextFile(Path(file.name), temporary=True)
        places, position = array("q"), 0
        extras: list[Any] = []
        skipped = 0
        for row in rows:
            texts = ["" if value is None else str(value).strip() for value in row[:n_texts]]
            if not all(texts) or None in row[n_texts:]:
                skipped += 1
                continue
            for text in texts:
                start = position
                position += file.write(text.encode("utf-8"))
                places.extend((start, position))
            extras.extend(row[n_texts:])
    columns = _rows(places, n_texts, 2).unbind(1)
    return [ReadOnDemand(read, column) for column in columns], extras, skipped


def _rows(places: array[int], *shape: int) -> Tensor:
    return torch.from_numpy(np.array(places).reshape(-1, *shape))


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits the finalizer, but the file is not its own
        path.unlink(missing_ok=True)
