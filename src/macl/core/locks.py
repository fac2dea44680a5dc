"""One writer at a time: a lock file with who holds it, since when, and a heartbeat.

On one machine the operating system's record lock decides, and it ends with its process. Where it
does not reach, on other machines that share the file system or on one without locks, a lock counts
as long as its file was touched within `STALE` seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from macl.core.errors import UserError
from macl.core.launch import launched_rank

LOCK = ".macl.lock"
"""The lock file of a folder, inside it."""
BEAT, STALE = 10.0, 60.0
"""Seconds between two signs of life, and after which another host's lock counts as abandoned."""


class Busy(UserError):
    """Another process holds the lock."""


_held: set[tuple[int, int]] = set()
"""Device and inode of the locks of this process, which record locks do not keep apart."""


@contextmanager
def lock_folder(folder: Path, name: str = LOCK, what: Path | None = None) -> Iterator[None]:
    """Hold the lock of a folder, which is made if needed and removed if it stays empty.

    Of processes that train one run, the first holds it for all. `name` is that of the lock file,
    `what` is written, if not the folder as a whole. `UserError` with host, number and start of the
    process that holds it.
    """
    if launched_rank() != 0:
        yield
        return
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose a folder that is empty or new.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"could not write {folder}: {error.strerror}.") from error
    try:
        descriptor = _acquire(folder / name, what or folder)
        status, ended = os.fstat(descriptor), threading.Event()
        beats = threading.Thread(target=_beat, args=(descriptor, ended), daemon=True)
        beats.start()
        _held.add((status.st_dev, status.st_ino))
        try:
            yield
        finally:
            ended.set()
            beats.join()
            _held.discard((status.st_dev, status.st_ino))
            with suppress(OSError):
                if os.path.samestat(status, os.lstat(folder / name)):
                    os.unlink(folder / name)
            os.close(descriptor)
    finally:
        with suppress(OSError):  # something was written into it
            for place in made:
                place.rmdir()


def _acquire(path: Path, what: Path) -> int:
    """A new lock file, locked and with our name in it; an abandoned one is removed before."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        descriptor = None
        try:
            is_new = not os.path.lexists(path)
            descriptor = os.open(path, flags | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o644)
            _require_free(descriptor, path, what)
            # The former holder, or another process that waits, may have removed it meanwhile.
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                if is_new:
                    since = time.strftime("%Y-%m-%d %H:%M:%S")
                    own = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
                    os.pwrite(descriptor, json.dumps(own).encode(), 0)
                    locked, descriptor = descriptor, None
                    return locked
                os.unlink(path)
        except (FileExistsError, FileNotFoundError):
            continue
        except OSError as error:
            raise UserError(f"could not lock {what} by {path}: {error.strerror}.") from error
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _require_free(descriptor: int, path: Path, what: Path) -> None:
    status = os.fstat(descriptor)
    holder: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError):
        stored = json.loads(os.pread(descriptor, 4096, 0))
        holder = stored if isinstance(stored, dict) else {}
    is_busy = out_of_reach = False
    if (status.st_dev, status.st_ino) in _held:
        is_busy = True
    else:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            out_of_reach = holder.get("host") not in (None, socket.gethostname())
        except (BlockingIOError, PermissionError):
            is_busy = True
        except OSError:  # a file system without locks
            out_of_reach = bool(holder)
    if out_of_reach:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            now = os.fstat(file.fileno()).st_mtime  # of the file system: clocks of machines differ
        is_busy = abs(now - status.st_mtime) < STALE
    if is_busy:
        known = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"
        raise Busy(
            f"{what} is being written by {known if holder else 'another process'}. Wait for its "
            "end, stop it, or choose another folder."
        )


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(descriptor)
