"""What goes wrong in processes that read data beside this one, told in words."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from macl.core.errors import UserError

READ_TIMEOUT = 600
"""Seconds without data from a reading process: a hung one is an error, not an endless wait."""


LOADER = "torch.utils.data"
"""Where the loader's code is."""


class WorkerFailed(UserError):
    """A reading process died, or gives nothing."""


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Around work on the batches of a torch DataLoader: its failures come as `UserError`.

    Around the work, and not only the reading, because torch tells of a dead worker by a signal,
    which interrupts whatever runs at the moment.
    """
    try:
        try:
            yield
        except (ConnectionError, EOFError) as error:  # it died while it handed something over
            if not _is_from_loader(error):
                raise
            raise _failed(f"DataLoader worker: {error}", error) from error
    except UserError as error:  # from a worker it comes with that one's traceback as text
        told = str(error).rpartition("UserError: ")[2].rstrip()
        if told == str(error):
            raise
        raise UserError(told) from None
    except RuntimeError as error:
        if not _words(str(error).strip()):
            raise
        raise _failed(str(error).strip(), error) from error


def _failed(text: str, error: Exception) -> WorkerFailed:
    # The loader goes now; while a frame held it, torch would tell of its dead worker again.
    with _ignore_child_signals():
        traceback.clear_frames(error.__traceback__)
    return WorkerFailed(_words(text))


@contextmanager
def _ignore_child_signals() -> Iterator[None]:
    """Not to be told by signal what is known already, in the middle of clearing up."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    listening = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, listening)


def _is_from_loader(error: Exception) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").startswith(LOADER) for frame in frames)


def _words(text: str) -> str:
    """What an error of torch's loader means, or nothing."""
    if text.startswith("DataLoader timed out"):
        return (
            f"no data came for a long time ({text}): a reading process hangs, or the storage "
            "does. workers=0 reads in this process itself."
        )
    if text.startswith("DataLoader worker"):
        return f"a reading process died ({text}), often for lack of memory: use fewer workers."
    return ""
