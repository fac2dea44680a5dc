"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from macl.errors import UserError

PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write beside `path`, flush, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(
            f"could not write {path}: {error.strerror or error}. "
            "What was there before is untouched; free some space and resume."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what processes left in `folder` that were killed while they wrote."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)
