"""Failures of a DataLoader's worker processes as `UserError`."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from macl.core.errors import UserError

READ_TIMEOUT = 600
"""Seconds without data from a worker until it is an error."""

LOADER = "torch.utils.data"
"""The package of torch's DataLoader."""


class WorkerFailed(UserError):
    """A worker process died or hangs."""


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Within this context failures of a torch DataLoader are raised as `UserError`.

    It must enclose the work on the batches too: torch reports a dead worker by a signal handler,
    which raises wherever the main process is at that moment.
    """
    try:
        yield
    except UserError as error:  # from a worker, with its traceback as text
        message = str(error).rpartition("UserError: ")[2].rstrip()
        if message == str(error):
            raise
        raise UserError(message) from None
    except (ConnectionError, EOFError, RuntimeError) as error:
        text = str(error).strip()
        if not isinstance(error, RuntimeError):  # the worker died while sending a batch
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            if not any(frame.f_globals.get("__name__", "").startswith(LOADER) for frame in frames):
                raise
            text = f"DataLoader worker: {text}"
        if text.startswith("DataLoader timed out"):
            explanation = (
                f"no data came for a long time ({text}): a reading process or the storage hangs. "
                "workers=0 reads in the main process."
            )
        elif text.startswith("DataLoader worker"):
            explanation = (
                f"a reading process died ({text}), often for lack of memory: use fewer workers."
            )
        else:
            raise
        _free_loader(error)
        raise WorkerFailed(explanation) from error


def _free_loader(error: Exception) -> None:
    # torch would report its dead worker again, and so would a signal of the child meanwhile.
    in_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if in_main else None
    try:
        traceback.clear_frames(error.__traceback__)
    finally:
        if in_main:
            signal.signal(signal.SIGCHLD, previous)
