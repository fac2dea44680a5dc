"""Lines on the runs of a comparison while they train, off a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from macl.cli.console import escaped, message, on_terminal
from macl.core.errors import UserError
from macl.core.progress import SECONDS


class Heartbeat:
    """Prints epoch, step and loss of every run that is in progress, every half minute.

    It reads the run folders, so it works alike for runs in this process, in parallel processes and
    on several devices. Use it as a context; `start` is called when the folder is known.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, folder: Path) -> None:
        """Begin, unless a progress bar shows that the command works."""
        if not on_terminal():
            self._thread = threading.Thread(target=self._print, args=(folder,), daemon=True)
            self._thread.start()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _print(self, folder: Path) -> None:
        since = time.time()
        while not self._ended.wait(SECONDS):
            for line in lines(folder, since):
                message(escaped(line))


def lines(folder: Path, since: float) -> Iterator[str]:
    """One line for each run below `folder` that was written to after `since` and is not evaluated.

    `since` is a time stamp of the file system, in seconds.
    """
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
