"""The Triton kernels, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; its kernels cannot run")

from triton_cases import CASES, Check
from triton_mutants import MUTANTS
from triton_reference import Exclusions

from macl.losses.kernels import triton as kernels

SCRIPT = Path(__file__).with_name("triton_cases.py")
Found = dict[str, dict[str, list[Check]]]


@pytest.fixture(scope="module")
def found() -> Found:
    """All cases in one process of its own: it takes the interpreter's time once."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def wrong(checks: list[Check]) -> list[Check]:
    # NaN compares as false: an error that is NaN is wrong too.
    return [(name, error, bound) for name, error, bound in checks if not error <= bound]


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64(found: Found, case: str) -> None:
    checks = found["kernels"][case]
    assert checks
    assert not wrong(checks)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mistakes_are_noticed(found: Found, mutant: str) -> None:
    assert wrong(found["mutants"][mutant]), f"{MUTANTS[mutant].case} does not notice it"


def test_other_arithmetic_is_refused() -> None:
    rows, tau = torch.ones(4, 8), torch.tensor(0.1)
    with pytest.raises(TypeError, match="plain-torch backend"):
        kernels.lse(rows.double(), rows.double(), tau, Exclusions())
    with pytest.raises(ValueError, match="plain-torch backend"):
        kernels.lse(rows, rows, tau, Exclusions(), precision="ieee")
    with pytest.raises(ValueError, match="tf32x3"):
        kernels.lse(rows, rows, tau, Exclusions(), precision="exact")
    with pytest.raises(ValueError, match="same D"):
        kernels.lse(rows, rows[:, :3], tau, Exclusions())


def test_unknown_maps_are_refused() -> None:
    class Square:
        name = "square"

    rows = torch.ones(4, 8)
    with pytest.raises(ValueError, match="dystress, artanh"):
        kernels.lse(rows, rows, None, Exclusions(), Square())


def test_self_check_without_a_gpu_is_false() -> None:
    if torch.cuda.is_available():
        assert kernels.self_check()
    else:
        assert kernels.self_check() is False


def test_an_error_of_nan_is_noticed() -> None:
    assert wrong([("lse", math.nan, 1.0)])
