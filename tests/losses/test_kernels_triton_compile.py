"""The Triton kernels compiled for GPUs: no spilled registers, shared memory that the chip has.

A sample of each chip's configurations; all of them with MACL_COMPILE_ALL=1 (`make kernels`).
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; nothing can be compiled")

import triton
from triton.backends.compiler import GPUTarget
from triton_reference import Exclusions

from macl.losses.kernels import functions, triton_launch, triton_step
from macl.losses.kernels import triton as kernels
from macl.losses.kernels.triton_compile import (
    ARITHMETICS,
    CHIPS,
    FUNCTIONS,
    KINDS,
    WIDTHS,
    Case,
    Usage,
    cases,
    compile_launch,
    planned,
    row_cases,
)

SAMPLE = 23  # every so many of the list; shares no factor with the length of its periods
ALL = os.environ.get("MACL_COMPILE_ALL") == "1"


def wrong(selected: list[Case]) -> list[str]:
    compiled = [(case, compile_launch(planned(case), case.sm)) for case in selected]
    return [f"{case}: {p}" for case, usage in compiled if (p := usage.problem(case.sm))]


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="minutes of compiling: MACL_COMPILE_ALL=1, as `make kernels`")
@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("sm", CHIPS)
def test_all_fit(sm: int, arithmetic: str, dim: int) -> None:
    mine = [case for case in cases(sm) if (case.arithmetic, case.dim) == (arithmetic, dim)]
    assert {case.kind for case in mine} == set(KINDS)
    assert wrong(mine) == []


@pytest.mark.slow
@pytest.mark.skipif(ALL, reason="all of them are compiled")
@pytest.mark.parametrize("sm", CHIPS)
def test_a_sample_fits(sm: int) -> None:
    assert wrong(cases(sm)[::SAMPLE]) == []


@pytest.mark.slow
@pytest.mark.parametrize("sm", CHIPS)
def test_the_row_kernels_fit(sm: int) -> None:
    """All of them with MACL_COMPILE_ALL=1, else the widest of each type and every objective."""
    mine = [case for case in row_cases(sm) if ALL or case.dim in (0, max(WIDTHS))]
    assert {case.kind for case in mine} >= set(FUNCTIONS)
    assert wrong(mine) == []


def test_every_objective_has_a_kernel() -> None:
    assert set(FUNCTIONS) == set(functions.FUNCTIONS)


def test_a_tile_that_is_too_large_is_noticed() -> None:
    """The check itself: twice the columns spill on sm_80."""
    case = Case("backward", "lse groups", "tf32", 256, 80)
    launch = planned(case)
    launch.constants.update(BM=128, BN=64)
    assert compile_launch(launch, 80).problem(80)


def test_what_counts_as_a_problem() -> None:
    assert not Usage(255, 0, 99 * 1024).problem(80)
    assert "spilled" in Usage(255, 8, 1024).problem(80)
    assert "shared memory" in Usage(255, 0, 100 * 1024).problem(80)  # sm_86 runs these too
    assert not Usage(255, 0, 100 * 1024).problem(90)


class AbsentGPU:
    """As much of Triton's driver as it takes to compile what a launch asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)


def test_a_launch_binds_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own launcher accepts real arguments, up to the launch itself."""
    compiled = []

    def warm_up(self: triton_launch.Launch) -> None:
        kernel = triton_launch.KERNELS[self.kernel]
        options = {**self.arguments, **self.constants, **self.options}
        compiled.append(kernel.run(**options, grid=self.grid, warmup=True))

    monkeypatch.setattr(triton_launch.Launch, "run", warm_up)
    monkeypatch.setattr(triton.runtime.driver, "_active", AbsentGPU())
    rows, ones, tau = torch.randn(70, 20), torch.ones(70), torch.tensor(0.1)
    for exclude in (Exclusions(), Exclusions((0, 1, -35), torch.arange(70), torch.arange(70))):
        kernels.lse(rows, rows, tau, exclude)
        kernels.lse_grad(rows, rows, tau, exclude, ones, ones)
    unit = triton_step.normalised(rows[:35], rows[35:].bfloat16())
    triton_step.anchors(ones, unit, tau, "softplus")
    triton_step.projected(rows, unit, ones, tau, tau, torch.bfloat16)
    assert [c.metadata.enable_fp_fusion for c in compiled] == [False] * 7
