"""Compressed files from strangers: those that would unpack to far more than they hold are refused.

Nothing is unpacked here; a zip is judged by its directory, which its readers do not read beyond,
and a gzip file, which has none, by counting.
"""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

from macl.core.errors import UserError

MAX_UNPACKED_BYTES = 2**28
"""Bytes that anything may unpack to."""
MAX_COMPRESSION_RATIO = 100
"""Above that, how often its own size a file may unpack to. Tables of text reach about 20."""


def refuse_bomb(path: Path) -> None:
    """Raise `UserError` when the zip, npz or gzip file `path` is a decompression bomb."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if _is_bomb(member.file_size, member.compress_size):
                    raise _refusal(path, f"its member {member.filename} would unpack")
    elif path.suffix.lower() == ".gz":
        _count(path)


def _count(path: Path) -> None:
    held, unpacked = path.stat().st_size, 0
    with gzip.open(path) as file:
        while read := len(file.read(2**20)):
            unpacked += read
            if _is_bomb(unpacked, held):
                raise _refusal(path, "it would unpack")


def _is_bomb(unpacked: int, held: int) -> bool:
    return unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_COMPRESSION_RATIO * held


def _refusal(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} is refused: {what} to more than {MAX_COMPRESSION_RATIO} times its size and "
        f"{MAX_UNPACKED_BYTES >> 20} MB, and may be a decompression bomb. "
        "If you trust it, give it unpacked."
    )
