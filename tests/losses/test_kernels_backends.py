"""Every implementation of the streamed operator against float64 loops: one matrix of cases."""

from __future__ import annotations

from types import ModuleType

import kernel_reference as reference
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.kernels import (
    CosineTemperature,
    Exclusions,
    InverseTanh,
    LogitMap,
    cpu,
    tiles,
    torch_tiles,
)

BACKENDS = {"cpu": cpu, "torch": torch_tiles}
N, M = 7, 9
LOGITS = ("tau", "tau-per-row", "dystress", "artanh")
EXCLUSIONS = ("none", "diagonals", "groups", "only-groups", "all-of-a-row")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> ModuleType:
    return BACKENDS[request.param]


@pytest.fixture(params=["one tile", "many tiles"], autouse=True)
def tiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many tiles":
        monkeypatch.setattr(tiles, "TILE", 3)
        monkeypatch.setattr(tiles, "CPU_BAND", 20)


def unit(n: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1).to(
        dtype
    )


def pairs(dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Rows and columns; with D = 1 all similarities are ±1, so they are kept away from it."""
    rows, columns = unit(N, dim, 1, dtype), unit(M, dim, 2, dtype)
    return (rows, columns) if dim > 1 else (0.9 * rows, 0.8 * columns)


def exclusions(kind: str) -> Exclusions:
    row_groups, column_groups = torch.arange(N) % 3, torch.arange(M) % 4
    return {
        "none": Exclusions(),
        "diagonals": Exclusions((0, 3, -2)),
        "groups": Exclusions((1,), row_groups, column_groups),
        "only-groups": Exclusions((0,), row_groups, column_groups, only_groups=True),
        "all-of-a-row": Exclusions((), torch.tensor([5, 0, 0, 0, 0, 0, 0]), torch.full((M,), 5)),
    }[kind]


def logits_of(
    kind: str, tau: float, dtype: torch.dtype = torch.float64
) -> tuple[Tensor | None, LogitMap | None]:
    if kind == "tau":
        return torch.tensor(tau, dtype=dtype), None
    if kind == "tau-per-row":
        return torch.linspace(tau, 2 * tau, N, dtype=dtype), None
    return None, CosineTemperature(tau, 2 * tau) if kind == "dystress" else InverseTanh()


def truth(
    rows: Tensor, columns: Tensor, tau: Tensor | None, exclude: Exclusions, map: LogitMap | None
) -> reference.Matrix:
    each = None if tau is None else tau.double().expand(len(rows)).tolist()
    return reference.matrix(rows, columns, each, exclude, map)


def close(got: Tensor, expected: Tensor | list[float], tolerance: float) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    finite = expected[expected.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dim", [1, 3, 64, 130])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("excluding", EXCLUSIONS)
def test_float64(backend: ModuleType, kind: str, excluding: str, dim: int) -> None:
    rows, columns = pairs(dim)
    exclude = exclusions(excluding)
    tau, map = logits_of(kind, 0.1)
    whole = truth(rows, columns, tau, exclude, map)
    lse = backend.lse(rows, columns, tau, exclude, map)
    close(lse, whole.lse(), 1e-12)
    assert bool(lse[0].isneginf()) == (excluding == "all-of-a-row")

    weight = torch.linspace(-1, 2, N, dtype=torch.float64)
    expected = whole.gradients(weight.tolist(), [0.0] * M)
    one_way = (rows, columns, tau, exclude, weight, lse, None, None, map)
    close(backend.lse_grad(*one_way), expected["rows"], 1e-12)
    d_rows, d_columns = backend.lse_grads(*one_way, columns_too=True)
    close(d_rows, expected["rows"], 1e-12)
    close(d_columns, expected["columns"], 1e-12)

    if kind == "tau-per-row":
        return  # not symmetric: the columns have no logsumexp over the same logits
    back = backend.lse(columns, rows, tau, exclude.transposed(), map)
    close(back, whole.transposed().lse(), 1e-12)
    column_weight = torch.linspace(2, -1, M, dtype=torch.float64)
    expected = whole.gradients(weight.tolist(), column_weight.tolist())
    both = (rows, columns, tau, exclude, weight, lse, column_weight, back, map)
    d_rows, d_columns = backend.lse_grads(*both, columns_too=True)
    close(d_rows, expected["rows"], 1e-12)
    close(d_columns, expected["columns"], 1e-12)
    swapped = (columns, rows, tau, exclude.transposed(), column_weight, back, weight, lse, map)
    close(backend.lse_grad(*swapped), expected["columns"], 1e-12)


@pytest.mark.parametrize("tau", [1.0, 0.1, 0.02, 0.005])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("dim", [3, 130])
def test_float32_and_bfloat16(backend: ModuleType, kind: str, tau: float, dim: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows, columns = pairs(dim, dtype)
        exclude = exclusions("groups")
        temperature, map = logits_of(kind, tau, torch.float32)
        whole = truth(rows, columns, temperature, exclude, map)  # from the same, rounded rows
        lse = backend.lse(rows, columns, temperature, exclude, map)
        assert lse.dtype == torch.float32
        off = (lse.double() - torch.tensor(whole.lse(), dtype=torch.float64)).abs().max()
        steepest = float(whole.slopes.max())  # 1/τ: by so much errors of s grow in the logits
        assert float(off) <= 1e-6 + 4e-7 * steepest
        weight = torch.linspace(0.5, 2, N)
        expected = whole.gradients(weight.tolist(), [0.0] * M)
        got = backend.lse_grads(
            rows, columns, temperature, exclude, weight, lse, None, None, map, columns_too=True
        )
        for part, name in zip(got, ("rows", "columns"), strict=True):
            off = (part.double() - expected[name]).abs().max() / expected[name].abs().max()
            assert float(off) <= (1e-5 if steepest <= 20 else 5e-5)


def test_far_below_the_range_of_exponentials(backend: ModuleType) -> None:
    """All similarities near −1 at τ = 0.005: e^−200 for every pair, which no sum may lose."""
    e = F.normalize(torch.ones(1, 8), dim=1)
    rows, columns = e.repeat(N, 1), -e.repeat(M, 1)
    tau = torch.tensor(0.005)
    lse = backend.lse(rows, columns, tau, Exclusions())
    torch.testing.assert_close(lse, torch.log(torch.tensor(9.0)).repeat(N) - 200, rtol=1e-6, atol=0)
    got = backend.lse_grad(rows, columns, tau, Exclusions(), torch.ones(N), lse, None, None)
    torch.testing.assert_close(got, columns[:N] / tau, rtol=1e-4, atol=1e-4)


def test_nan_stays_nan(backend: ModuleType) -> None:
    rows, columns = unit(N, 5, 1), unit(M, 5, 2)
    rows[2] = torch.nan
    for tau in (0.1, 0.0001):
        temperature = torch.tensor(tau).double()
        lse = backend.lse(rows, columns, temperature, Exclusions((0,)))
        assert lse.isnan().tolist() == [i == 2 for i in range(N)]
        got = backend.lse_grad(
            rows, columns, temperature, Exclusions((0,)), torch.ones(N).double(), lse, None, None
        )
        assert got.isnan().any(1).tolist() == [i == 2 for i in range(N)]


@pytest.mark.parametrize("scalar_offset", [True, False])
@pytest.mark.parametrize("excluding", EXCLUSIONS)
@pytest.mark.parametrize("function", reference.FUNCTIONS)
def test_pair_sums(backend: ModuleType, function: str, excluding: str, scalar_offset: bool) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        rows, columns = pairs(5, dtype)
        exclude = exclusions(excluding)
        scale = torch.tensor(-7.0, dtype=dtype)
        offset = torch.tensor(-3.0) if scalar_offset else torch.linspace(-40, 40, N)
        offset = offset.to(dtype)
        weight = torch.linspace(-1, 2, N, dtype=dtype)
        each = offset.expand(N).tolist()
        values, d = reference.pair_sum(
            rows, columns, -7.0, each, exclude, weight.tolist(), function
        )
        close(backend.pair_sum(rows, columns, scale, offset, exclude, function), values, tolerance)
        got = backend.pair_sum_grad(rows, columns, scale, offset, exclude, weight, function)
        if scalar_offset:
            d["offset"] = d["offset"].sum()
        for part, expected in zip(got, d.values(), strict=True):
            assert part.shape == expected.shape
            close(part, expected, tolerance)


def test_it_repeats_bit_for_bit(backend: ModuleType) -> None:
    rows, columns = pairs(64, torch.float32)
    tau, exclude = torch.tensor(0.1), exclusions("groups")
    lse = backend.lse(rows, columns, tau, exclude)
    arguments = (rows, columns, tau, exclude, torch.ones(N), lse, None, None)
    first, second = (backend.lse_grads(*arguments, columns_too=True) for _ in range(2))
    assert torch.equal(lse, backend.lse(rows, columns, tau, exclude))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
