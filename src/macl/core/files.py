"""Atomic writing, and the cache folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from macl.core.errors import UserError

PARTIAL = ".partial"
"""Suffix of a file that is being written."""

OUT_OF_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""Error numbers of a full disk. NumPy raises an `OSError` without number after a short write."""


def atomic_write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a temporary file beside `path`, flush it, and rename it to `path`.

    A reader sees the old file or the new one, never a part. `UserError` where that fails.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        remedy = (
            "The old file is untouched; free some space, then try again or resume."
            if error.errno in OUT_OF_SPACE_ERRNOS
            else "Choose a folder that you may write to."
        )
        raise UserError(f"could not write {path}: {error.strerror or error}. {remedy}") from error
    finally:
        with suppress(OSError):  # it was renamed, or could not be created
            partial.unlink()


def remove_partial(folder: Path) -> None:
    """Remove temporary files of processes that were killed while writing to `folder`."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def cache_folder(name: str) -> Path:
    """The folder NAME in the user's cache folder of macl."""
    return platformdirs.user_cache_path("macl") / name
