"""Around a command that trains many runs: it can be stopped, and off a terminal shows progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from macl.cli.console import message
from macl.core.errors import UserError
from macl.core.progress import SECONDS, bars_fit


@contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """A stop ends the command, with everything saved.

    Unless a progress bar fits, there is a line for every run in progress, every half minute. It is
    read from the run folders: runs may be in this process, in others and on several devices.
    """
    from macl.core.signals import Interrupted
    from macl.runs import Run  # noqa: F401  before there is a second thread

    for number in (signal.SIGTERM, signal.SIGHUP):  # end like Ctrl-C, runs saved
        signal.signal(number, signal.default_int_handler)
    ended = threading.Event()
    since = time.time()

    def print_lines() -> None:
        while not ended.wait(SECONDS):
            for line in lines(folder, since):
                message(line)

    thread = threading.Thread(target=print_lines, daemon=True)
    if not bars_fit():
        thread.start()
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        message("stopped; give the same command again to continue")
        sys.exit(130)
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def lines(folder: Path, since: float) -> Iterator[str]:
    """A line for each run below `folder` written to after `since` (seconds) and not evaluated."""
    from macl.runs import Run

    for file in sorted(folder.rglob("metrics.csv")):
        run = Run(file.parent)
        try:
            if run.results_file.exists() or file.stat().st_mtime < since:
                continue
            rows, recipe = run.metrics(), run.recipe
        except (OSError, UserError):
            continue  # being written at this moment
        if run.is_finished:
            yield f"{file.parent.name}: trained, evaluation is running"
        elif rows:
            row = rows[-1]
            epochs = "" if recipe.steps else f" of {recipe.epochs}"
            loss = f", loss {row['loss']:.3f}" if "loss" in row else ""
            yield (
                f"{file.parent.name}: epoch {row['epoch'] + 1:.0f}{epochs}, step "
                f"{row['step']:.0f}{loss}"
            )
