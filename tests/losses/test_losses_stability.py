"""Finite and right for every input: float32 and half precision against float64 truth.

Truth is the textbook formula in plain torch and float64, from the same, already rounded inputs:
there the ratios that break in float32 are still in range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl import (
    DCL,
    DCLW,
    HCL,
    MACL,
    ContrastiveLoss,
    DualTemperature,
    FlatNCE,
    InfoNCE,
    NTXent,
)

TAUS = (0.005, 0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0, 10.0)
SIZES = (1, 64, 4096)
DIM = 8
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 3e-2}
ROUNDING = 2e-5
"""Of float32 sums over thousands of equal terms, relative to their size."""


@dataclass(frozen=True)
class Margins:
    """What a textbook formula may use: x at τ, x at 10τ, s⁺, τ."""

    x: Tensor
    x_beta: Tensor
    positive: Tensor
    tau: float


def _reweighted(m: Margins) -> Tensor:
    return F.softplus(m.x) / torch.sigmoid(m.x).detach()


def _dual(m: Margins) -> Tensor:
    ratio = torch.sigmoid(m.x_beta) / torch.sigmoid(m.x)
    return ratio.detach() * F.softplus(m.x)


def _dclw(m: Margins) -> Tensor:
    share = torch.softmax(m.positive.detach() / 0.5, 0)
    w = 2 - len(share) * share
    return m.x + (1 - w) * m.positive / m.tau


TEXTBOOK: dict[str, tuple[Callable[..., ContrastiveLoss], Callable[[Margins], Tensor]]] = {
    "nt-xent": (NTXent, lambda m: F.softplus(m.x)),
    "dcl": (DCL, lambda m: m.x),
    "dclw": (DCLW, _dclw),
    "flat-nce": (FlatNCE, lambda m: torch.exp(m.x - m.x.detach())),
    "dual": (DualTemperature, _dual),
    "macl": (lambda tau, **form: MACL(tau, 0.0, **form), _reweighted),
}


def losses_for(dtype: torch.dtype) -> list[str]:
    """All in float32. Half precision differs only before and after: two of them tell."""
    return list(TEXTBOOK) if dtype is torch.float32 else ["nt-xent", "macl"]


def random_rows(*shape: int) -> Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(sum(shape)))


def banks(k: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Query, key, bank of k rows: from the easiest positive to the hardest, and degenerate."""
    q, key, bank = random_rows(4), random_rows(4) + 0.1, random_rows(k)
    e = F.normalize(torch.ones(1, DIM) + torch.arange(DIM), dim=1)
    zeroed = q.clone()
    zeroed[0] = 0
    holes = bank.clone()
    holes[0] = 0
    return {
        "random": (q, key, bank),
        "positives +1": (q, 2 * q, bank),
        "positives -1": (q, -q, bank),
        "negatives -1": (e.repeat(4, 1), e.repeat(4, 1) + 0.05 * q, -e.repeat(k, 1)),
        "negatives +1": (e.repeat(4, 1), e.repeat(4, 1) + 0.05 * q, e.repeat(k, 1)),
        "hopeless": (e.repeat(4, 1), -e.repeat(4, 1) + 0.05 * q, e.repeat(k, 1) + 0.01 * bank),
        "done": (e.repeat(4, 1), e.repeat(4, 1) + 0.01 * q, -e.repeat(k, 1) + 0.05 * bank),
        "identical": (e.repeat(4, 1), e.repeat(4, 1), e.repeat(k, 1)),
        "zero vectors": (zeroed, key, holes),
    }


def truth(
    textbook: Callable[[Margins], Tensor], rows: Tensor, split: list[int], form: str, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, gradient, and per row the size of the terms that cancel in the gradient."""
    rows = rows.detach().double().requires_grad_()
    unit = F.normalize(rows, dim=1, eps=1e-300)
    z1, z2, more = unit.split(split)
    positive = (z1 * z2).sum(1)
    if form == "bank":
        s = z1 @ more.T
    else:
        both = torch.cat([z1, z2])
        own = torch.eye(len(z1), dtype=torch.bool).repeat(2, 2)
        s = (both @ both.T).masked_fill(own, -torch.inf)
        positive = positive.repeat(2)
    x, x_beta = (torch.logsumexp(s / t, 1) - positive / t for t in (tau, 10 * tau))
    value = textbook(Margins(x, x_beta, positive, tau)).mean()
    gradient, dx = torch.autograd.grad(value, (rows, x))
    length = rows.detach().norm(dim=1, keepdim=True)
    size = dx.abs().amax() * 2 / tau / length  # |∂x/∂s⁺| + Σ|∂x/∂s_j| = 2/τ
    zero = length == 0
    return value.detach(), gradient.masked_fill(zero, 0.0), size.masked_fill(zero, 0.0)


def check(
    name: str, parts: tuple[Tensor, ...], form: str, tau: float, dtype: torch.dtype
) -> str | None:
    """None, or what is wrong."""
    build, textbook = TEXTBOOK[name]
    leaves = torch.cat(parts).to(dtype).requires_grad_()
    split = [len(part) for part in parts]
    expected, gradient, size = truth(textbook, leaves, split, form, tau)
    # Half precision is trained with a loss scale, which keeps gradients within the type's range.
    largest = float(gradient.abs().max())
    noise = ROUNDING * size
    scale = 1.0
    if dtype is torch.float16 and (peak := max(largest, float(noise.max()))) > 0:
        scale = 2.0 ** -max(-100, min(100, math.ceil(math.log2(peak))))
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=False)
        if dtype is torch.float32
        else (torch.autocast("cpu", dtype))
    ):
        z1, z2, more = leaves.split(split)
        value = build(tau)(z1, z2, bank=more if form == "bank" else None)
    (got,) = torch.autograd.grad(value * scale, leaves)
    if value.dtype != torch.float32:
        return f"value in {value.dtype}"
    value = value.detach()
    if not bool(value.isfinite() and got.isfinite().all()):
        return f"value {value:g}, gradient finite: {bool(got.isfinite().all())}"
    tolerance = TOLERANCE[dtype]
    # x is a difference of logits of size 1/τ, so that is what its rounding is relative to.
    if abs(float(value) - float(expected)) > tolerance * abs(float(expected)) + 1e-6 / tau + 1e-37:
        return f"value {float(value):g}, truth {float(expected):g}"
    error = (got.double() / scale - gradient).abs()
    allowed = tolerance * largest + noise + 1e-37
    if bool((error > allowed).any()):
        return f"gradient off by {float(error.max()):g} of {largest:g}"
    return None


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("tau", TAUS)
def test_banks_of_any_size(tau: float, dtype: torch.dtype) -> None:
    wrong = {
        (name, case, k): problem
        for k in SIZES
        for case, parts in banks(k).items()
        for name in losses_for(dtype)
        if (problem := check(name, parts, "bank", tau, dtype))
    }
    assert not wrong, "\n".join(f"{key}: {problem}" for key, problem in wrong.items())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("tau", TAUS)
def test_batches_down_to_two_pairs(tau: float, dtype: torch.dtype) -> None:
    wrong = {}
    none = torch.empty(0, DIM)
    for n in (2, 64):
        z1, z2 = random_rows(n), random_rows(n, 1)[:, 0]
        one = torch.ones(n, DIM)
        cases = {
            "random": (z1, z2, none),
            "equal views": (z1, z1, none),
            "opposite views": (z1, -z1, none),
            "nearly equal views": (z1, z1 + 1e-3 * z2, none),
            "identical rows": (one, one, none),
            "zeros": (torch.zeros(n, DIM), torch.zeros(n, DIM), none),
            "one view of zeros": (z1, torch.zeros(n, DIM), none),
        }
        for case, parts in cases.items():
            for name in losses_for(dtype):
                if problem := check(name, parts, "both", tau, dtype):
                    wrong[name, case, n] = problem
    assert not wrong, "\n".join(f"{key}: {problem}" for key, problem in wrong.items())


@pytest.mark.parametrize("tau", TAUS)
def test_hcl_is_finite_everywhere(tau: float) -> None:
    """Its debiased difference has no relative accuracy near the clamp, so only finiteness."""
    for k in SIZES:
        for query, key, bank in banks(k).values():
            z = query.clone().requires_grad_()
            for criterion in (HCL(tau), HCL(tau, beta=0.0), HCL(tau, tau_plus=0.0)):
                value = criterion(z, key, bank=bank)
                (gradient,) = torch.autograd.grad(value, z)
                assert value.isfinite()
                assert bool(gradient.isfinite().all())


def test_the_reweighted_value_tends_to_one() -> None:
    pos, neg = torch.ones(1, 1), -torch.ones(1, 1)
    for tau in TAUS:
        x = -2 / tau
        expected = torch.tensor(x, dtype=torch.float64)
        expected = torch.log1p(expected.exp()) / expected.sigmoid()
        value = MACL(tau, 0.0).from_similarities(pos, neg)
        assert float(value) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("criterion", [MACL(), InfoNCE(), HCL()], ids=lambda c: type(c).__name__)
def test_rows_of_any_length(criterion: ContrastiveLoss, scale: float) -> None:
    z1, z2 = random_rows(6).requires_grad_(), random_rows(6, 1)[:, 0]
    value = criterion(z1, z2)
    (gradient,) = torch.autograd.grad(value, z1)
    far = (z1.detach() * scale).requires_grad_()
    far_value = criterion(far, z2 * scale)
    (far_gradient,) = torch.autograd.grad(far_value, far)
    torch.testing.assert_close(far_value, value, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        far_gradient.double() * scale, gradient.double(), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_without_autocast(dtype: torch.dtype) -> None:
    z1, z2 = random_rows(6).to(dtype).requires_grad_(), random_rows(6, 1)[:, 0].to(dtype)
    value = MACL()(z1, z2)
    expected = MACL()(z1.detach().double(), z2.double())
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    value.backward()
    assert z1.grad is not None
    assert z1.grad.dtype == dtype
    assert MACL()(z1.detach(), z2, bank=random_rows(5)) > 0  # a bank may keep its own type


@pytest.mark.parametrize("scale", [2.0**40, 2.0**-70])
def test_a_loss_scale_does_not_leak_into_the_kernel(scale: float) -> None:
    """Negatives near +1, the smallest τ of the fast path: sums at the end of float32's range."""
    query, key = random_rows(4).requires_grad_(), random_rows(5)[1:]
    bank = query.detach() + 0.1 * random_rows(6)[2:]
    criterion = NTXent(0.0182)
    (plain,) = torch.autograd.grad(criterion(query, key, bank=bank), query)
    (scaled,) = torch.autograd.grad(criterion(query, key, bank=bank) * scale, query)
    torch.testing.assert_close(scaled / scale, plain, rtol=1e-5, atol=1e-5)
