"""The losses on the Triton kernels, interpreted: in a process of its own, as Triton demands."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import every_loss
import pytest

import macl

HERE = Path(__file__).parent


@pytest.mark.skipif(
    not importlib.util.find_spec("triton")
    or not importlib.util.find_spec("macl.losses.kernels.triton"),
    reason="needs triton and the Triton kernels",
)
def test_losses_on_the_interpreter() -> None:
    path = os.pathsep.join([str(Path(macl.__file__).parents[1]), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_losses.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agree") == 5
    counts = [int(line.split()[-1]) for line in done.stdout.splitlines() if "launches" in line]
    assert len(counts) == len(every_loss.LOSSES)
    assert max(counts) < 10
