"""The Triton kernels compiled for GPUs: no spilled registers, shared memory that the chip has.

What each configuration uses is recorded (`make kernels`); here those are compiled whose kernel or
compiler has changed since, and a sample of the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; nothing can be compiled")

import triton
from triton.backends.compiler import GPUTarget
from triton_reference import Exclusions

from macl.losses.kernels import functions, triton_launch, triton_step
from macl.losses.kernels import triton as kernels
from macl.losses.kernels.triton_compile import (
    CHIPS,
    FUNCTIONS,
    KINDS,
    Case,
    Record,
    Usage,
    cases,
    compile_launch,
    fingerprint,
    planned,
    row_cases,
)

SAMPLE = 41  # every so many of the list; shares no factor with the length of its periods
RECORD = Record(Path(__file__).parents[2] / "docs/results/data/kernels.json")


def usage(case: Case) -> Usage:
    """As recorded; compiled if the kernel or the compiler has changed since."""
    return RECORD.usage(case) or compile_launch(planned(case), case.sm)


@pytest.mark.slow
@pytest.mark.parametrize("sm", CHIPS)
def test_all_fit(sm: int) -> None:
    shipped = cases(sm) + row_cases(sm)
    assert {case.kind for case in shipped} >= {*KINDS, *FUNCTIONS}
    assert [f"{case}: {p}" for case in shipped if (p := usage(case).problem(sm))] == []


@pytest.mark.slow
@pytest.mark.parametrize("sm", CHIPS)
def test_the_record_is_what_the_compiler_says(sm: int) -> None:
    """A sample of each chip's configurations, compiled."""
    sample = (cases(sm) + row_cases(sm))[::SAMPLE]
    wrong = {
        str(case): (recorded, compiled)
        for case in sample
        if (recorded := usage(case)) != (compiled := compile_launch(planned(case), sm))
    }
    assert wrong == {}


def test_a_changed_kernel_is_compiled_again(tmp_path: Path) -> None:
    """Constants, types, options and chip are part of the fingerprint, which is Triton's own key."""
    case = Case("anchors", "one", "fp32", 0, 80)
    launch = planned(case)
    record = Record(tmp_path / "kernels.json")
    assert record.usage(case) is None
    record.add(case, Usage(1, 2, 3))
    record.write()
    assert Record(record.file).usage(case) == Usage(1, 2, 3)
    before = fingerprint(launch, 80)
    assert fingerprint(launch, 90) != before
    launch.constants["SYMMETRIC"] = not launch.constants["SYMMETRIC"]
    assert fingerprint(launch, 80) != before
    record.entries[str(case)][0] = fingerprint(launch, 80)
    assert record.usage(case) is None


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
