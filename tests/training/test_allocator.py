"""Freed memory is kept inside `kept_memory` and returned after it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from forking import Forked
from tiny import environment

SCRIPT = """
import resource, sys
from contextlib import nullcontext
import torch
from macl.training.compute import kept_memory

def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.ones(12_000_000)  # 48 MB, above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
faults(1)
usual = faults(12)
with kept_memory():
    faults(4)
    kept = faults(12)
after = faults(1)
print(usual, kept, after)
"""


def counted(folder: Path, **variables: str) -> list[int]:
    script = folder / "count.py"
    script.write_text(SCRIPT)
    done = Forked(script, environment=environment(variables)).wait()
    assert done.returncode == 0, done.stderr
    return [int(part) for part in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_blocks_are_not_cleared_again(tmp_path: Path) -> None:
    usual, kept, after = counted(tmp_path)
    if usual < 1000:
        pytest.skip("this system gives memory in pages too large to count")
    assert kept < usual / 2  # some are new until the heap has found its size
    # Returned: the next block is cleared. Later ones may lie where that one was in the heap.
    assert after > usual / 12 / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_settings_of_the_environment_stay(tmp_path: Path) -> None:
    usual, kept, _ = counted(tmp_path, MALLOC_ARENA_MAX="2")
    assert kept > usual / 2
