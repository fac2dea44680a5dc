"""The Triton kernels, run by Triton's interpreter on the CPU, and what they refuse."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.language", reason="triton is not installed; its kernels cannot run")

from kernel_cases import CASES, Check
from kernel_inputs import ARTANH, DYSTRESS, excluding, unit
from kernel_mutants import MUTANTS

import macl
from macl.losses.ops.exclusions import Exclusions, Relation
from macl.losses.ops.triton import launch as kernels

HERE = Path(__file__).parent
Results = dict[str, dict[str, list[Check]]]


def interpret(*arguments: str) -> Results:
    """Run the cases in a process of its own."""
    path = os.pathsep.join([str(Path(macl.__file__).parents[1]), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "kernel_cases.py"), *arguments],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results() -> Results:
    """All cases at once: it takes the interpreter's time once."""
    return interpret("--mutants")


def wrong(checks: list[Check]) -> list[Check]:
    # NaN compares as false: an error that is NaN is wrong too.
    return [(name, error, bound) for name, error, bound in checks if not error <= bound]


def test_both_views_agree_with_float64() -> None:
    checks = interpret("views")["kernels"]["views"]
    assert len(checks) == 9
    assert not wrong(checks)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64(results: Results, case: str) -> None:
    checks = results["kernels"][case]
    assert checks
    assert not wrong(checks)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mistakes_are_noticed(results: Results, mutant: str) -> None:
    assert wrong(results["mutants"][mutant]), f"{MUTANTS[mutant].case} does not notice it"


def test_an_error_of_nan_is_noticed() -> None:
    assert wrong([("lse", math.nan, 1.0)])


def test_other_arithmetic_is_refused() -> None:
    rows, tau = torch.ones(4, 8), torch.tensor(0.1)
    with pytest.raises(TypeError, match="tiled implementation"):
        kernels.lse(rows.double(), rows.double(), tau, excluding())
    with pytest.raises(ValueError, match="same D"):
        kernels.lse(rows, rows[:, :3], tau, excluding())


def test_unknown_maps_and_functions_are_refused() -> None:
    class Square:
        name = "square"

        def parameters(self) -> list[float]:
            return []

    rows, one = torch.ones(4, 8), torch.ones(())
    assert kernels.supported(DYSTRESS, "one")
    assert kernels.supported(ARTANH)
    assert not kernels.supported(Square())
    assert not kernels.supported(None, "square")
    with pytest.raises(ValueError, match="dystress, artanh"):
        kernels.lse(rows, rows, None, excluding(), Square())
    with pytest.raises(ValueError, match="softplus, identity"):
        kernels.pair_sum(rows, rows, one, one, excluding(), "square")


def test_exclusions_of_the_losses() -> None:
    """Diagonals and one relation of integers; multi-hot labels and lists are of another kind."""
    classes = Relation(torch.arange(4), torch.arange(4))
    assert Exclusions((0,), classes=classes).is_simple
    assert not Exclusions((0,), classes, classes).is_simple
    hot = Relation(torch.eye(4), torch.eye(4))
    assert not Exclusions((0,), classes=hot).is_simple
    rows = torch.ones(4, 8)
    with pytest.raises(ValueError, match="diagonals and groups"):
        kernels.lse(rows, rows, torch.ones(()), Exclusions(classes=hot))


def split_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """a·bᵀ by three products of two parts each, as tensor cores that lose nothing compute it."""
    (a_high, a_low), (b_high, b_low) = (
        (x.to(dtype).float(), (x - x.to(dtype).float()).to(dtype).float()) for x in (a, b)
    )
    return a_low @ b_high.T + a_high @ b_low.T + a_high @ b_high.T


def test_two_float16_parts_are_as_good_as_float32_and_bfloat16_parts_are_not() -> None:
    """At τ = 0.01, where the bound is 1e-6 + 4e-7/τ and each row has a column close to it."""
    tau, rows = 0.01, unit(512, 128, 0)
    near = torch.nn.functional.normalize(rows + 0.02 * unit(512, 128, 1), dim=1)
    columns = torch.cat([near, unit(188, 128, 2)])
    expected = (rows.double() @ columns.double().T / tau).logsumexp(1)

    def error(s: torch.Tensor) -> float:
        return float(((s.double() / tau).logsumexp(1) - expected).abs().max())

    bound, plain = 1e-6 + 4e-7 / tau, error(rows @ columns.T)
    assert error(split_product(rows, columns, torch.float16)) <= max(plain, bound)
    assert error(split_product(rows, columns, torch.bfloat16)) > 3 * bound


@pytest.mark.parametrize(("programs", "most", "expected"), [
    (1, 1, 1),       # too few columns
    (8, 64, 13),     # N = 512, both views: 104 programs on 108 multiprocessors
    (64, 128, 5),    # 320 programs in three turns, three fifths of the time of 64 in one
    (1080, 100, 1),  # ten full turns
    (109, 100, 10),  # one program too many: eleven short turns instead of two long ones
])  # fmt: skip
def test_column_splits_fill_the_multiprocessors(programs: int, most: int, expected: int) -> None:
    device = kernels.Device(80, 108)
    splits = kernels.splits_of(programs, device, 1, most)

    def time(s: int) -> float:
        return math.ceil(programs * s / 108) / s

    assert splits == expected
    assert time(splits) <= 1.1 * min(time(s) for s in range(1, most + 1))


def test_partial_gradients_are_bounded() -> None:
    rows = torch.empty(1, 2048, 768, dtype=torch.float16, device="meta")
    columns = torch.empty(1, 2**20, 768, dtype=torch.float16, device="meta")
    tau = torch.empty((), device="meta")
    launch = kernels.plan(
        "backward", "lse", rows, columns, excluding(), kernels.Device(90, 1000), scale=tau
    )
    assert 1 < launch.splits <= kernels.PARTIAL_BYTES // (4 * 2048 * 768)


@pytest.mark.parametrize(("dim", "products"), [
    (64, 3), (128, 3), (200, 3), (256, 3), (384, 3), (512, 4), (768, 4), (1024, 5),
])  # fmt: skip
@pytest.mark.parametrize("parts", [1, 2])
def test_products_of_a_step(dim: int, products: int, parts: int) -> None:
    """Forward, similarities again for each piece of the components, and the gradient's."""
    rows = torch.empty(parts, 4096, dim, dtype=torch.float16, device="meta")
    tau = torch.empty((), device="meta")
    for sm in (80, 90, 100):
        launch = kernels.plan(
            "backward", "lse", rows, rows, excluding((0,)), kernels.Device(sm), scale=tau
        )
        assert launch.grid[2] + 2 == products
