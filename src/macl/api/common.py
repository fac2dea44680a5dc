"""What the functions of `macl.api` share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from macl.core.errors import UserError
from macl.core.progress import silence
from macl.modalities.records import path_exists

PathLike = str | os.PathLike[str]
"""A path as a text or an object."""


def progress_bars(shown: bool) -> AbstractContextManager[None]:
    """Shows the progress bars of the work within, or none."""
    return nullcontext() if shown else silence()


def existing(path: PathLike | None) -> Path | None:
    """The path; `UserError`, before anything heavy is imported, where nothing is there."""
    if path is not None and not path_exists(Path(path)):
        raise UserError(f"{path}: there is no such file or folder.")
    return None if path is None else Path(path)


def data_overrides(data: PathLike | None, key: str = "data.path") -> dict[str, Path]:
    """`data` as the override of a key with a path that exists."""
    from macl.core.section import absolute  # needs pydantic

    path = existing(data)
    return {} if path is None else {key: absolute(path)}
