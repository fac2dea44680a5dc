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


def data_overrides(data: PathLike | None, key: str = "data.path") -> dict[str, Path]:
    """`data` as the override of a key with a path that exists."""
    if data is None:
        return {}
    from macl.core.section import absolute  # needs pydantic

    path = Path(data)
    if not path_exists(path):
        raise UserError(f"{path}: there is no such file or folder.")
    return {key: absolute(path)}
