"""How often the fuzz tests try: the same examples every time, or FUZZ_TIMES as many new ones."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
ADDITIONAL = 1_500_000_000
"""Bytes of address space beyond what the libraries take, for reading hostile files."""
SECONDS = 60
"""Of CPU time, for the same."""


def examples(count: int) -> settings:
    """`count` examples, or so many times more."""
    return settings(max_examples=count * TIMES, derandomize=TIMES == 1, deadline=None)


@contextmanager
def little_memory_and_time() -> Iterator[None]:
    """Bound what this process may allocate and compute meanwhile."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    bound = pages * resource.getpagesize() + ADDITIONAL
    handler = signal.signal(signal.SIGPROF, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (bound, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS * TIMES)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s of CPU time")
