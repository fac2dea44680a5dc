"""Ctrl-C and SIGTERM answered between steps, when everything is in a state worth keeping."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Training was asked to stop; everything up to the last step is in the checkpoint."""


class StopSignals:
    """Takes note of SIGINT and SIGTERM while listening; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        """The name of the signal that was heard."""
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Begin, where Python allows it: in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)

    def release(self) -> None:
        """Give the signals back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def __enter__(self) -> StopSignals:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
