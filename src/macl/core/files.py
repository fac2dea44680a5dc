"""Atomic writing that follows no link, folders with one writer, the cache folder, JSON."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from macl.core.errors import UserError
from macl.core.inside import refuse_foreign_parts
from macl.core.locks import LOCK, lock_folder

PARTIAL = ".partial"
"""Suffix of a file or folder that is being written."""

_LEFTOVER = re.compile(r"\..*\.[0-9a-f]{16}\.partial", re.DOTALL)
"""Names of temporary files: 64 random bits, so that no link can be waiting under the name."""

CONTINUE = "use `resume=True` to continue the run in it, or another folder (`out=`)"

OUT_OF_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""Error numbers of a full disk. NumPy raises an `OSError` without number after a short write."""


def atomic_write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a temporary file beside `path`, flush it, and rename it to `path`.

    A reader sees the old file or the new one. A link at `path` is replaced, not followed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path.parent) as folder, _partial_file(path, folder) as (name, file):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        remedy = "Choose a folder that you may write to."
        if error.errno in OUT_OF_SPACE_ERRNOS:
            remedy = "The old file is untouched; free some space, then try again or resume."
        raise UserError(f"could not write {path}: {error.strerror or error}. {remedy}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `atomic_write` does."""
    atomic_write(path, lambda file: file.write(text.encode()))


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Iterable[Any]]) -> None:
    """Write a table as a whole."""

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(lines)
        text.detach()

    atomic_write(path, write)


def partial_name(path: Path) -> str:
    """A new random name for what becomes `path`, which `remove_partial` recognizes."""
    return f".{path.name[:80]}.{secrets.token_hex(8)}{PARTIAL}"


def require_new(folder: Path, remedy: str = CONTINUE) -> None:
    """`UserError` unless `folder` is empty or not there yet; `remedy` says what to do."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose a folder that is empty or new.")
    if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty; {remedy}.")


def remove_partial(folder: Path) -> None:
    """Remove temporary files and folders of this user's processes that were killed in `folder`."""
    try:
        entries = [entry for entry in os.scandir(folder) if _LEFTOVER.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError), _opened(Path(entry.path), flags) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not of one that still writes
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                continue
            if stat.S_ISREG(status.st_mode):
                os.unlink(entry.path)
            elif stat.S_ISDIR(status.st_mode):
                shutil.rmtree(entry.path)  # does not follow links


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, renamed to `folder` when the block ends without error."""
    with lock_folder(folder.parent, f".{folder.name}.lock", folder):
        remove_partial(folder.parent)
        partial = folder.with_name(partial_name(folder))
        try:
            partial.mkdir()
            with _opened(partial) as descriptor:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                yield partial
                os.replace(partial, folder)
        except OSError as error:
            raise UserError(f"could not make {folder}: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def owned_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder whose parts are inside it; leftovers are removed."""
    with lock_folder(folder):
        refuse_foreign_parts(folder)
        for place, _, _ in os.walk(folder):
            remove_partial(Path(place))
        yield


def cache_folder(name: str) -> Path:
    """The folder NAME in the user's cache folder of macl."""
    return platformdirs.user_cache_path("macl") / name


@contextmanager
def _opened(path: Path, flags: int = os.O_DIRECTORY) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _partial_file(path: Path, folder: int) -> Iterator[tuple[str, BinaryIO]]:
    """A new file for what becomes `path`, locked while it is written, removed unless renamed."""
    name = partial_name(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield name, file
        finally:
            with suppress(OSError):  # it was renamed
                os.unlink(name, dir_fd=folder)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
