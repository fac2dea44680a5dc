"""A whole loss on the Triton kernels, interpreted: values, gradients, and the count of launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed; its kernels cannot run")

from triton_fused import CASES, LAUNCHES

import macl

HERE = Path(__file__).parent
# Normalise, logsumexp, anchors, its gradient, project; τ and the gradient 1 of a loss from torch.
TRITON = {"InfoNCE": 7, "MACL cross": 7}
# Across views both ways, a logsumexp and a gradient more; with an adaptive τ, a mean and two more.
MORE = {"MACL cross": 11}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """All cases in one process of its own, as Triton demands."""
    path = os.pathsep.join([str(Path(macl.__file__).parents[1]), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_fused.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_loops(found: dict[str, Any], case: str) -> None:
    checks = found["checks"][case]
    assert checks
    # NaN compares as false: an error that is NaN is wrong too.
    assert [check for check in checks if not check[1] <= check[2]] == []


@pytest.mark.parametrize("case", LAUNCHES)
def test_fewer_than_10_launches_at_4096_pairs(found: dict[str, Any], case: str) -> None:
    names = found["launches"][case]
    assert len(names) <= MORE.get(case, 9), names
    assert sum(name.startswith("triton") for name in names) == TRITON.get(case, 5)
