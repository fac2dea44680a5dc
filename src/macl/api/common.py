"""What the functions of `macl.api` share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.errors import UserError
from macl.core.progress import silence
from macl.modalities.records import path_exists

if TYPE_CHECKING:
    from macl import runs
    from macl.runs.elsewhere import RunLike

PathLike = str | os.PathLike[str]
"""A path as a text or an object."""


def run_folder(run: RunLike) -> Path:
    """The folder of a run."""
    return Path(run) if isinstance(run, str | os.PathLike) else run.folder


def open_run(run: RunLike, device: str = "auto", precision: str = "auto") -> runs.Run:
    """An existing run; `UserError` when the folder is none, or the device is not there."""
    from macl import recipes

    recipes.require_run(run_folder(run))  # before torch is imported
    from macl import runs
    from macl.core.devices import place

    return runs.Run.open(run_folder(run), place(device, precision))


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
