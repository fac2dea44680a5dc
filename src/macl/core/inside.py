"""What files from anywhere may lead to: parts of their own folder, never a link out or a device."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from macl.core.errors import UserError

ALLOW_OUTSIDE = "MACL_ALLOW_OUTSIDE"
"""Environment variable: further folders that paths in data may lead to, separated as in PATH."""


def file_inside(root: Path, name: str) -> Path:
    """The regular file that `name`, taken from data in the folder `root`, stands for.

    `UserError` where it lies outside, is not there, or is a folder, a pipe or a device.
    """
    places = [root, *map(Path, filter(None, os.environ.get(ALLOW_OUTSIDE, "").split(os.pathsep)))]
    try:
        path = (root / name).resolve()
        if not any(path.is_relative_to(place.resolve()) for place in places):
            raise UserError(
                f"{name} is outside of {root}, where the data is. If you trust the data, name its "
                f"folder in the environment variable {ALLOW_OUTSIDE}."
            )
        require_regular(path)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a loop of links
        raise UserError(f"{name} in {root}: {error}") from error
    return path


def require_regular(path: Path) -> None:
    """`UserError` for what is not a regular file: pipes and devices need not end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a regular file.")


def refuse_foreign_parts(folder: Path) -> None:
    """`UserError` if something in `folder` leads out of it: a link, a pipe, a socket, a device."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(place, name)
            with suppress(FileNotFoundError):  # renamed meanwhile
                mode, kind = os.lstat(path).st_mode, ""
                if stat.S_ISLNK(mode):
                    if not os.path.realpath(path).startswith(root + os.sep):
                        kind = f"a link to {os.readlink(path)}"
                elif not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                    kind = "a pipe, socket or device"
                if kind:
                    shown = folder / os.path.relpath(path, root)
                    raise UserError(
                        f"{shown} is {kind}: the parts of {folder} must be real files and folders "
                        "inside it. Replace it by a copy, or remove it."
                    )
