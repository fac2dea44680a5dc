"""Memory of a step is linear in the batch: tensors alive at once, and what the process holds."""

from __future__ import annotations

import subprocess
import sys

import every_loss
import pytest
import torch

from macl import ContrastiveLoss

# Both views of N = 1,536 are 9.4 million similarities, 38 MB: more than the kernels keep.
N, DIM = 1536, 16
MATRIX = 4 * (2 * N) ** 2
NAMES = [*every_loss.LOSSES, *every_loss.OTHERS]


def criterion(name: str, n: int) -> ContrastiveLoss:
    if name in every_loss.LOSSES:
        return every_loss.build(name, "both", n)
    return every_loss.OTHERS[name](n, DIM, negatives="both")


def most_alive(name: str, n: int) -> int:
    """The largest number of bytes in tensors that a step holds at once beyond its inputs."""
    torch.manual_seed(0)
    loss = criterion(name, n)
    about = every_loss.about_samples(loss, n, "cpu")
    z1, z2 = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        loss(z1, z2, **about).backward()
    assert profile.kineto_results is not None
    changes = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    alive = most = 0
    for event in sorted(changes, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


@pytest.mark.parametrize("name", NAMES)
def test_no_step_holds_the_matrix_and_twice_the_batch_takes_twice_the_memory(name: str) -> None:
    one, two = most_alive(name, N), most_alive(name, 2 * N)
    assert one < 0.9 * MATRIX, "a few tiles of 4 MB"
    assert two < 2.2 * one


STEP = """
from pathlib import Path
import torch
import macl

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))

def step(n):
    z1, z2 = (torch.randn(n, 128, requires_grad=True) for _ in range(2))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = resident("VmRSS")
    macl.SigLIP()(z1, z2).backward()
    return resident("VmHWM") - before

torch.set_num_threads(1)
step(2048)  # what is loaded on first use is not counted
print(min(step(4096) for _ in range(3)))  # what else the heap holds differs from time to time
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_bands_leave_no_gaps_in_the_heap() -> None:
    """What each band left for its rows once lay where the next band could have been."""
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60, "the matrix has 64 MB, a tile 4"
