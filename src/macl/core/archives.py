"""Decompression bombs: compressed files that would unpack to far more than their size are refused.

Nothing is written. The sizes in a zip file come from its directory, which its readers respect; a
gzip file has none and is decompressed in pieces to count its bytes.
"""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

from macl.core.errors import UserError

MAX_UNPACKED_BYTES = 2**28
"""Bytes that any file may unpack to."""
MAX_COMPRESSION_RATIO = 100
"""Above `MAX_UNPACKED_BYTES`: unpacked bytes per stored byte. Tables of text reach about 20."""


def refuse_bomb(path: Path) -> None:
    """Raise `UserError` when the zip, npz or gzip file `path` is a decompression bomb."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if _is_bomb(member.file_size, member.compress_size):
                    raise _refusal(path, f"its member {member.filename} would unpack")
    elif path.suffix.lower() == ".gz":
        _count_unpacked(path)


def _count_unpacked(path: Path) -> None:
    stored, unpacked = path.stat().st_size, 0
    with gzip.open(path) as file:
        while read := len(file.read(2**20)):
            unpacked += read
            if _is_bomb(unpacked, stored):
                raise _refusal(path, "it would unpack")


def _is_bomb(unpacked: int, stored: int) -> bool:
    return unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_COMPRESSION_RATIO * stored


def _refusal(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} is refused: {what} to more than {MAX_COMPRESSION_RATIO} times its size and "
        f"{MAX_UNPACKED_BYTES >> 20} MB, and may be a decompression bomb. "
        "If you trust it, unpack it and give the unpacked file."
    )
