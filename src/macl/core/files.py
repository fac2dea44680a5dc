"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from macl.core.errors import UserError

PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""

OUT_OF_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""Numbers of errors for want of room; NumPy, which sees that not all is written, gives none."""


def atomic_write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write beside `path`, flush, then rename: a reader sees the old file or the new one."""
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
            "What was there before is untouched; free some space, then try again or resume."
            if error.errno in OUT_OF_SPACE_ERRNOS
            else "Choose a place where you may write."
        )
        raise UserError(f"could not write {path}: {error.strerror or error}. {remedy}") from error
    finally:
        with suppress(OSError):  # where nothing could be made, nothing is left
            partial.unlink()


def remove_partial(folder: Path) -> None:
    """Remove what processes left in `folder` that were killed while they wrote."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def cache_folder(name: str) -> Path:
    """The folder macl/NAME in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "macl" / name
