"""The Triton kernels compiled for GPUs: no spilled registers, shared memory that the chip has.

What each configuration uses is recorded (`make kernels`); here those are compiled whose kernel or
compiler has changed since, and a sample of the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.language", reason="triton is not installed; nothing can be compiled")
pytest.importorskip("triton.knobs", reason="needs Triton 3.4, which comes with torch 2.8, or newer")

import triton
from kernel_inputs import excluding
from triton.backends.compiler import GPUTarget

from macl.losses.ops.triton import launch as kernels

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from triton_compile import (
    CHIPS,
    Case,
    Record,
    Usage,
    cases,
    compile_launch,
    fingerprint,
    planned,
)

ROOT = Path(__file__).parents[3]
SAMPLE = 31  # every so many of the list; shares no factor with the length of its periods
RECORD = Record(ROOT / "docs/results/data/kernels.json")


def usage(case: Case) -> Usage:
    """As recorded; compiled if the kernel or the compiler has changed since."""
    return RECORD.usage(case) or compile_launch(planned(case), case.sm)


@pytest.mark.slow
@pytest.mark.parametrize("sm", CHIPS)
def test_all_fit(sm: int) -> None:
    assert [f"{case}: {p}" for case in cases(sm) if (p := usage(case).problem(sm))] == []


@pytest.mark.slow
@pytest.mark.parametrize("sm", CHIPS)
def test_the_record_is_what_the_compiler_says(sm: int) -> None:
    """A sample of each chip's configurations, compiled."""
    wrong = {
        str(case): (recorded, compiled)
        for case in cases(sm)[::SAMPLE]
        if (recorded := usage(case)) != (compiled := compile_launch(planned(case), sm))
    }
    assert wrong == {}


def test_a_changed_kernel_is_compiled_again(tmp_path: Path) -> None:
    """Constants, types, options and chip are part of the fingerprint, which is Triton's own key."""
    case = Case("forward", "lse", "float16", 128, 80)
    launch = planned(case)
    record = Record(tmp_path / "kernels.json")
    assert record.usage(case) is None
    record.add(case, Usage(1, 2, 3))
    record.write()
    assert Record(record.file).usage(case) == Usage(1, 2, 3)
    before = fingerprint(launch, 80)
    assert fingerprint(launch, 90) != before
    launch.constants["STATS"] = True
    assert fingerprint(launch, 80) != before
    record.entries[str(case)][0] = fingerprint(launch, 80)
    assert record.usage(case) is None


def test_a_tile_that_is_too_large_is_noticed() -> None:
    """The check itself: more columns spill on sm_80."""
    launch = planned(Case("backward", "lse", "float16x3", 768, 80))
    launch.constants.update(BN=64, BD=64)
    assert compile_launch(launch, 80).problem(80)


def test_what_counts_as_a_problem() -> None:
    assert not Usage(255, 0, 99 * 1024).problem(80)
    assert "spilled" in Usage(255, 8, 1024).problem(80)
    assert "empty" in Usage(4, 0, 1024).problem(100)
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


@pytest.mark.slow
def test_a_launch_binds_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own launcher accepts real arguments, up to the launch itself."""
    compiled = []

    def warm_up(self: kernels.Launch, **outputs: torch.Tensor | None) -> None:
        options = {**self.arguments, **outputs, **self.constants, **self.options}
        compiled.append(kernels.KERNELS[self.kernel].run(**options, grid=self.grid, warmup=True))

    monkeypatch.setattr(kernels.Launch, "run", warm_up)
    monkeypatch.setattr(triton.runtime.driver, "_active", AbsentGPU())
    rows, ones, tau = torch.randn(70, 20), torch.ones(70), torch.tensor(0.1)
    for exclude in (excluding(), excluding((0, 1, -35), torch.arange(70), torch.arange(70))):
        kernels.lse(rows, rows, tau, exclude, stats=bool(exclude.diagonals))
        kernels.lse_grad(rows.half(), rows.half(), tau, exclude, ones, ones)
    assert [c.metadata.enable_fp_fusion for c in compiled] == [True] * 4
    assert [c.metadata.maxnreg for c in compiled] == [None] * 4
