"""Contenders in processes of their own that take turns.

What one does to its process (the allocator's settings, memory that stays, worker processes) is not
the others', and a change of the machine's speed meets all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Contender:
    """A process that runs the calling script with `--only NAME`, a block of steps at a time."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, sys.argv[0], *sys.argv[1:], "--only", name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def block(self) -> dict[str, Any]:
        """What the next block of steps found."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait(self) -> None:
        """Until it is ready to begin."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> None:
        """Close its input, which ends it."""
        self._process.communicate()


def in_turns(names: list[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """What each contender found in each round; all are started before the first."""
    contenders = {name: Contender(name) for name in names}
    for contender in contenders.values():
        contender.wait()  # nobody loads libraries while another is timed
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(contender.block())
    for contender in contenders.values():
        contender.end()
    return found


def serve(block: Callable[[], dict[str, Any]]) -> None:
    """In the contender's process: a block for every line of the input, its findings as a line."""
    print(flush=True)
    for _ in sys.stdin:
        print(json.dumps(block()), flush=True)


def resident_peak() -> float:
    """Largest resident memory of this process since the peak was reset, in MB (Linux)."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def reset_peak() -> float:
    """Let the peak start again from what is resident now, which is returned."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return resident_peak()
