"""Dense and tiled, in one tile and in many, against float64 loops: one matrix of cases."""

from __future__ import annotations

import kernel_reference as reference
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.ops import (
    CosineTemperature,
    Exclusions,
    Guide,
    InverseTanh,
    Listed,
    LogitMap,
    Relation,
    operator,
    tiled,
)
from macl.losses.ops.tiled import Direction, Plan

N, M = 6, 9
LOGITS = ("tau", "tiny-tau", "tau-per-row", "dystress", "artanh")
EXCLUSIONS = (
    "none", "diagonals", "groups", "classes", "classes and groups", "several labels",
    "only classes", "only several labels", "listed", "guide", "everything", "all of a row",
)  # fmt: skip
SYMMETRIC = (
    "none", "diagonals", "groups", "classes", "several labels", "only classes", "listed",
    "all of a row",
)  # fmt: skip


@pytest.fixture(params=["dense", "one tile", "many tiles"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "many tiles":
        monkeypatch.setattr(tiled, "CPU_TILE", 4)
    return "dense" if request.param == "dense" else "tiled"


def unit(n: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = F.normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)
    return (0.9 * rows if dim == 1 else rows).to(dtype)  # away from s = ±1


def multi_hot(n: int, shift: int = 0) -> Tensor:
    """Every row has one or two of four labels."""
    i = torch.arange(n) + shift
    return F.one_hot(i % 4, 4) | F.one_hot((i * i) % 4, 4)


def listed(pairs: list[tuple[int, int]]) -> Listed:
    rows, columns = torch.tensor(pairs).T
    return Listed(rows, columns, torch.ones(len(pairs)))


def exclusions(kind: str, m: int = M) -> Exclusions:
    groups = Relation(torch.arange(N) % 3, torch.arange(m) % 4)
    classes = Relation(torch.arange(N) // 2, torch.arange(m) // 3)
    labels = Relation(multi_hot(N), multi_hot(m, 1))
    pairs = listed([(0, 0), (0, 5), (3, 1), (5, m - 1), (2, 3)])
    guide = Guide(unit(N, 3, 5), unit(m, 3, 6), torch.linspace(-0.4, 0.6, N).double())
    return {
        "none": Exclusions(),
        "diagonals": Exclusions((0, 3, -2)),
        "groups": Exclusions((1,), groups),
        "classes": Exclusions((1,), classes=classes),
        "classes and groups": Exclusions((1,), groups, classes),
        "several labels": Exclusions((0,), classes=labels),
        "only classes": Exclusions((0,), classes=classes, only_classes=True),
        "only several labels": Exclusions((0,), classes=labels, only_classes=True),
        "listed": Exclusions((2,), listed=pairs),
        "guide": Exclusions((0,), guide=guide),
        "everything": Exclusions((0,), groups, labels, False, pairs, guide),
        "all of a row": Exclusions(
            (), Relation(torch.tensor([5, 0, 0, 0, 0, 0]), torch.full((m,), 5))
        ),
    }[kind]


def symmetric(kind: str) -> Exclusions:
    """Rows against themselves: both ends of a pair are excluded alike."""
    half, i = N // 2, torch.arange(N)
    labels = multi_hot(N)
    lonely = torch.tensor([5, 5, 0, 5, 5, 5])  # the rest are equal: nothing is left for them
    return {
        "none": Exclusions(),
        "diagonals": Exclusions((0, half, -half)),
        "groups": Exclusions((0, 1, -1), Relation(i % 4, i % 4)),
        "classes": Exclusions((0,), classes=Relation(i // 2, i // 2)),
        "several labels": Exclusions((0,), classes=Relation(labels, labels)),
        "only classes": Exclusions((0,), classes=Relation(i % 2, i % 2), only_classes=True),
        "listed": Exclusions((0,), listed=listed([(0, 4), (4, 0), (1, 2), (2, 1)])),
        "all of a row": Exclusions((2, -2), Relation(lonely, lonely)),
    }[kind]


def logits_of(kind: str, dtype: torch.dtype = torch.float64, tau: float = 0.1) -> Tensor | LogitMap:
    if kind in ("tau", "tiny-tau"):
        return torch.tensor(tau if kind == "tau" else 0.001, dtype=dtype, requires_grad=True)
    if kind == "tau-per-row":
        return torch.linspace(tau, 2 * tau, N, dtype=dtype).requires_grad_()
    return CosineTemperature(tau, 2 * tau) if kind == "dystress" else InverseTanh()


def truth(
    rows: Tensor, columns: Tensor, logits: Tensor | LogitMap, exclude: Exclusions
) -> reference.Matrix:
    rows, columns = rows.detach(), columns.detach()
    if isinstance(logits, LogitMap):
        return reference.matrix(rows, columns, None, exclude, logits)
    each = logits.detach().double().expand(len(rows)).tolist()
    return reference.matrix(rows, columns, each, exclude, None)


def close(got: Tensor, expected: Tensor | list[float], tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64).detach()
    finite = expected[expected.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(got.detach().double(), expected, rtol=0, atol=tolerance * scale)


def check_tau(got: Tensor, logits: Tensor, expected: Tensor) -> None:
    close(got, expected if logits.ndim else expected.sum(), 1e-11)


def leaves_of(*rows: Tensor, logits: Tensor | LogitMap) -> list[Tensor]:
    more = [logits] if isinstance(logits, Tensor) else []
    return [*(r.requires_grad_() for r in rows), *more]


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("excluding", EXCLUSIONS)
def test_rows(kernel: str, kind: str, excluding: str, dim: int) -> None:
    rows, columns = unit(N, dim, 1), unit(M, dim, 2)
    exclude, logits = exclusions(excluding), logits_of(kind)
    leaves = leaves_of(rows, columns, logits=logits)
    plan = Plan(exclude, statistics=True, kernel=kernel)
    found = operator.logsumexp(rows, columns, logits, plan)
    whole = truth(rows, columns, logits, exclude)
    close(found.lse, whole.lse())
    if excluding == "all of a row":
        assert found.lse[0].isneginf()
    assert found.mean is not None
    assert found.square is not None
    close(found.mean, whole.moments()[0])
    close(found.square, whole.moments()[1])
    weight = torch.linspace(-1, 2, N, dtype=torch.float64)
    expected = whole.gradients(weight.tolist(), [0.0] * M)
    d_rows, d_columns, *d_tau = torch.autograd.grad(found.lse, leaves, weight)
    close(d_rows, expected["rows"])
    close(d_columns, expected["columns"])
    if isinstance(logits, Tensor):
        check_tau(d_tau[0], logits, expected["tau"])
    close(operator.logsumexp(rows, columns, logits, Plan(exclude, kernel=kernel)).lse, found.lse)


@pytest.mark.parametrize("kind", ["tau", "tiny-tau", "dystress", "artanh"])
@pytest.mark.parametrize("excluding", [e for e in EXCLUSIONS if e not in ("guide", "everything")])
def test_both_directions(kernel: str, kind: str, excluding: str) -> None:
    rows, columns = unit(N, 5, 1), unit(M, 5, 2)
    exclude, logits = exclusions(excluding), logits_of(kind)
    leaves = leaves_of(rows, columns, logits=logits)
    found = operator.logsumexp(
        rows, columns, logits, Plan(exclude, direction="both", statistics=True, kernel=kernel)
    )
    whole = truth(rows, columns, logits, exclude)
    other = whole.transposed()
    close(found.lse, whole.lse() + other.lse())
    assert found.mean is not None
    assert found.square is not None
    close(found.mean, whole.moments()[0] + other.moments()[0])
    close(found.square, whole.moments()[1] + other.moments()[1])
    weight = torch.linspace(-1, 2, N + M, dtype=torch.float64)
    expected = whole.gradients(weight[:N].tolist(), weight[N:].tolist())
    d_rows, d_columns, *d_tau = torch.autograd.grad(found.lse, leaves, weight)
    close(d_rows, expected["rows"])
    close(d_columns, expected["columns"])
    if isinstance(logits, Tensor):
        check_tau(d_tau[0], logits, expected["tau"])


@pytest.mark.parametrize("kind", ["tau", "tiny-tau", "dystress", "artanh"])
@pytest.mark.parametrize("excluding", SYMMETRIC)
def test_rows_against_themselves(kernel: str, kind: str, excluding: str) -> None:
    rows = 0.95 * unit(N, 5, 1)  # artanh of a row with itself is finite
    exclude, logits = symmetric(excluding), logits_of(kind)
    leaves = leaves_of(rows, logits=logits)
    plan = Plan(exclude, "mirror", statistics=True, kernel=kernel)
    found = operator.logsumexp(rows, None, logits, plan)
    whole = truth(rows, rows, logits, exclude)
    close(found.lse, whole.lse())
    assert bool(found.lse.isneginf().any()) == (excluding == "all of a row")
    assert found.mean is not None
    assert found.square is not None
    close(found.mean, whole.moments()[0])
    close(found.square, whole.moments()[1])
    weight = torch.linspace(-1, 2, N, dtype=torch.float64)
    expected = whole.gradients(weight.tolist(), [0.0] * N)
    d_rows, *d_tau = torch.autograd.grad(found.lse, leaves, weight)
    close(d_rows, expected["rows"] + expected["columns"])
    if isinstance(logits, Tensor):
        check_tau(d_tau[0], logits, expected["tau"])


@pytest.mark.parametrize("excluding", EXCLUSIONS)
@pytest.mark.parametrize("kind", LOGITS)
def test_columns_without_gradient_may_change_before_the_backward_pass(
    kernel: str, kind: str, excluding: str
) -> None:
    rows, columns = unit(N, 5, 1).requires_grad_(), unit(M, 5, 2)
    exclude, logits = exclusions(excluding), logits_of(kind)
    expected = truth(rows, columns, logits, exclude).gradients([1.0] * N, [0.0] * M)
    lse = operator.logsumexp(rows, columns, logits, Plan(exclude, kernel=kernel)).lse
    columns.zero_()
    leaves = leaves_of(rows, logits=logits)
    d_rows, *d_tau = torch.autograd.grad(lse, leaves, torch.ones(N).double())
    close(d_rows, expected["rows"])
    if isinstance(logits, Tensor):
        check_tau(d_tau[0], logits, expected["tau"])


@pytest.mark.parametrize("tau", [1.0, 0.1, 0.02, 0.005])
@pytest.mark.parametrize("kind", ["tau", "tau-per-row", "dystress", "artanh"])
def test_float32_and_half_precision(kernel: str, kind: str, tau: float) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows, columns = unit(N, 130, 1, dtype), unit(M, 130, 2, dtype)
        exclude, logits = exclusions("groups"), logits_of(kind, torch.float32, tau)
        whole = truth(rows, columns, logits, exclude)  # from the same, rounded rows
        leaves = leaves_of(rows, columns, logits=logits)
        lse = operator.logsumexp(rows, columns, logits, Plan(exclude, kernel=kernel)).lse
        assert lse.dtype == torch.float32
        off = (lse.detach().double() - torch.tensor(whole.lse(), dtype=torch.float64)).abs().max()
        steepest = float(whole.slopes.max())  # 1/τ: by so much errors of s grow in the logits
        assert float(off) <= 1e-6 + 4e-7 * steepest
        weight = torch.linspace(0.5, 2, N)
        expected = whole.gradients(weight.tolist(), [0.0] * M)
        got = torch.autograd.grad(lse, leaves, weight)
        rounding = 0.0 if dtype == torch.float32 else float(torch.finfo(dtype).eps)
        for part, name in zip(got[:2], ("rows", "columns"), strict=True):
            assert part.dtype == dtype
            off = (part.double() - expected[name]).abs().max() / expected[name].abs().max()
            assert float(off) <= (1e-5 if steepest <= 20 else 5e-5) + rounding


def test_far_below_the_range_of_exponentials(kernel: str) -> None:
    """All similarities near −1 at τ = 0.005: e^−200 for every pair, which no sum may lose."""
    e = F.normalize(torch.ones(1, 8), dim=1)
    rows, columns = e.repeat(N, 1).requires_grad_(), -e.repeat(M, 1)
    lse = operator.logsumexp(
        rows, columns, torch.tensor(0.005), Plan(Exclusions(), kernel=kernel)
    ).lse
    torch.testing.assert_close(lse, torch.log(torch.tensor(9.0)).repeat(N) - 200, rtol=1e-6, atol=0)
    (got,) = torch.autograd.grad(lse.sum(), rows)
    torch.testing.assert_close(got, columns[:N] / 0.005, rtol=1e-4, atol=1e-4)


def test_nan_stays_nan(kernel: str) -> None:
    rows, columns = unit(N, 5, 1), unit(M, 5, 2)
    rows[2] = torch.nan
    rows.requires_grad_()
    for tau in (0.1, 0.0001):
        temperature = torch.tensor(tau).double()
        lse = operator.logsumexp(
            rows, columns, temperature, Plan(Exclusions((0,)), kernel=kernel)
        ).lse
        assert lse.isnan().tolist() == [i == 2 for i in range(N)]
        (got,) = torch.autograd.grad(lse.sum(), rows)
        assert got.isnan().any(1).tolist() == [i == 2 for i in range(N)]


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("excluding", EXCLUSIONS)
@pytest.mark.parametrize("function", reference.FUNCTIONS)
def test_pair_sums(kernel: str, function: str, excluding: str, per_row: bool) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        rows, columns = unit(N, 5, 1, dtype), unit(M, 5, 2, dtype)
        exclude = exclusions(excluding)
        scale = torch.linspace(-7, 3, N) if per_row else torch.tensor(-7.0)
        offset = torch.linspace(-40, 40, N) if per_row else torch.tensor(-3.0)
        leaves = [t.to(dtype).requires_grad_() for t in (rows, columns, scale, offset)]
        weight = torch.linspace(-1, 2, N, dtype=dtype)
        values, d = reference.pair_sum(
            rows.detach(), columns.detach(), scale.expand(N).tolist(), offset.expand(N).tolist(),
            exclude, weight.tolist(), function,
        )  # fmt: skip
        sums = operator.pair_sum(*leaves, Plan(exclude, function=function, kernel=kernel))
        close(sums, values, tolerance)
        got = torch.autograd.grad(sums, leaves, weight)
        for part, leaf, (name, expected) in zip(got, leaves, d.items(), strict=True):
            assert part.shape == leaf.shape, name
            whole = expected.sum() if leaf.ndim == 0 else expected
            close(part, whole, tolerance)


@pytest.mark.parametrize("direction", ["rows", "both", "mirror"])
def test_it_repeats_bit_for_bit(kernel: str, direction: Direction) -> None:
    found = []
    for _ in range(2):
        rows = unit(2 * N, 64, 1, torch.float32).requires_grad_()
        columns = None if direction == "mirror" else unit(M, 64, 2, torch.float32).requires_grad_()
        exclude = Exclusions((0, N, -N))
        values = operator.logsumexp(
            rows, columns, torch.tensor(0.1), Plan(exclude, direction=direction, kernel=kernel)
        )
        leaves = [rows] if columns is None else [rows, columns]
        found.append([values.lse, *torch.autograd.grad(values.lse.sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
