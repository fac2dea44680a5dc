"""Signals to stop are recorded, and handled between steps, when the state can be saved."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Training was stopped by a signal; the checkpoint contains everything up to the last step."""


class StopSignals:
    """Records SIGINT, SIGTERM, SIGHUP and in SLURM SIGUSR1; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        """The name of the signal received."""
        self._before: dict[int, Any] = {}

    def listen(self) -> StopSignals:
        """Install the handlers; Python allows it in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            # What `sbatch --signal=USR1@120` announces the end of a job with.
            ends = [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *ends):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def requeue(self) -> None:
        """Ask SLURM to start this job again, if SIGUSR1 announced its end."""
        if self.asked == signal.SIGUSR1.name:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)

    def release(self, *_: object) -> None:
        """Restore the previous handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    __enter__, __exit__ = listen, release

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
