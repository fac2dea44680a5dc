"""Failures around training (disk, reading processes, other ranks) as errors that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from macl.core import worker_errors
from macl.core.errors import UserError
from macl.core.files import OUT_OF_SPACE_ERRNOS
from macl.runs import Run

LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Parts of the messages of torch.distributed's backends when another process is gone."""


@contextmanager
def translate_training_errors(folder: Path) -> Iterator[None]:
    """Turn failures of disk, readers and other processes into a `UserError` with what to do."""
    try:
        with worker_errors.translate_worker_errors():
            yield
    except worker_errors.WorkerFailed as error:
        raise UserError(f"{error} {_how_to_continue(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        text = str(error).strip()
        if _is_disk_full(error):
            where = getattr(error, "filename", None) or folder
            message = f"could not write to {where}: {text}. {_how_to_continue(folder)}"
            raise UserError(message) from error
        if isinstance(error, RuntimeError) and any(sign in text for sign in LOST_PEER):
            raise UserError(
                f"another process of this run is gone ({text.splitlines()[0]}); its own message "
                f"may say why. {_how_to_continue(folder)}"
            ) from error
        raise


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in OUT_OF_SPACE_ERRNOS
    # Libraries in other languages (safetensors, tokenizers) quote the system's message.
    return os.strerror(errno.ENOSPC) in str(error)


def _how_to_continue(folder: Path) -> str:
    if not Run(folder).recipe_file.is_file():
        return "Nothing was trained yet; repeat the command afterwards."
    call = f"macl.train({str(folder)!r}, resume=True)"
    return f"The last good checkpoint is kept; continue with `{call}`."
