"""Whatever goes into a loss: a finite value and finite gradients come out, or a ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fuzzing import examples
from macl import DCL, DCLW, HCL, MACL, ContrastiveLoss, DualTemperature, FlatNCE, InfoNCE, NTXent
from macl.losses import CosineSchedule, LearnedTemperature

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LOSSES: list[Callable[..., ContrastiveLoss]] = [
    InfoNCE, NTXent, DCL, DCLW, FlatNCE, DualTemperature, HCL, MACL,
    lambda tau, **form: MACL(tau, alpha=4.0, threshold=0.9, **form),
    lambda tau, **form: NTXent(CosineSchedule(tau / 2, tau), **form),
    lambda tau, **form: NTXent(LearnedTemperature(tau, tau / 2, 2 * tau), **form),
]  # fmt: skip
TEMPERATURES = [1e-4, 1e-2, 0.1, 1.0, 1e2, 1e6]
SCALES = [0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30]


@st.composite
def rows(draw: st.DrawFn, dtype: torch.dtype, n: int, d: int, tau: float) -> Tensor:
    """(n, d) rows of every length, some equal, some opposite, some zero.

    Gradients grow as 1/(τ·length): lengths at which they leave the range of the type are left out.
    """
    info = torch.finfo(dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    pool = torch.randn(draw(st.integers(1, n)), d, generator=generator, dtype=torch.float64)
    pool[pool.norm(dim=1) < 0.1] = 1.0
    chosen = torch.randint(len(pool), (n,), generator=generator)
    signs = torch.randint(2, (n, 1), generator=generator) * 2 - 1
    least = max(info.tiny**0.5, 100 / tau / info.max)
    lengths = [s for s in SCALES if s == 0 or (least < s and s * 10 * d < info.max)]
    assume(lengths)
    picked = draw(st.lists(st.sampled_from(lengths), min_size=n, max_size=n))
    z = pool[chosen] * (signs if draw(st.booleans()) else 1) * torch.tensor(picked)[:, None]
    return z.to(dtype)


@st.composite
def calls(draw: st.DrawFn) -> tuple[ContrastiveLoss, list[Tensor], dict[str, Any]]:
    """A loss, the tensors that want gradients, and what else it is called with."""
    tau, dtype = draw(st.sampled_from(TEMPERATURES)), draw(st.sampled_from(DTYPES))
    n, d = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    reduction = draw(st.sampled_from(["mean", "none"]))
    criterion = draw(st.sampled_from(LOSSES))(
        tau,
        negatives=draw(st.sampled_from(["both", "cross"])),
        symmetric=draw(st.booleans()),
        reduction=reduction,
    )
    leaves = [draw(rows(dtype, n, d, tau)) for _ in range(2)]
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["groups"] = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    if draw(st.booleans()):
        # A mean divides by the weights; without, gradients grow with them, out of a small type.
        heavy = 1e6 if reduction == "mean" else 2.0
        weights = draw(st.lists(st.sampled_from([0.0, 0.5, heavy]), min_size=n, max_size=n))
        more["weights"] = torch.tensor(weights)
    for name in ("bank", "hard"):
        if draw(st.integers(0, 3)) == 0:
            leaves.append(draw(rows(dtype, draw(st.integers(1, 4)), d, tau)))
            more[name] = leaves[-1]
    if draw(st.integers(0, 9)) == 0:  # something is wrong with one number
        spoiled = draw(st.sampled_from(leaves))
        spoiled[0, 0] = draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    for leaf in leaves:
        leaf.requires_grad_()
    return criterion, leaves, more


@examples(600)
@given(calls())
def test_any_call(call: tuple[ContrastiveLoss, list[Tensor], dict[str, Any]]) -> None:
    criterion, leaves, more = call
    try:
        value = criterion(leaves[0], leaves[1], **more)
    except ValueError:
        return
    assert bool(value.isfinite().all())
    assert all(bool(leaf.isfinite().all()) for leaf in leaves), "taken, though it was spoiled"
    value.mean().backward()
    gradients = [leaf.grad for leaf in (*leaves, *criterion.parameters()) if leaf.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@examples(100)
@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([*DTYPES, torch.int64, torch.bool, torch.complex64]),
    st.sampled_from(LOSSES),
)
def test_any_shape_and_type(
    one: list[int], two: list[int], dtype: torch.dtype, build: Callable[..., ContrastiveLoss]
) -> None:
    try:
        value = build(0.1)(torch.ones(one).to(dtype), torch.ones(two).to(dtype))
    except ValueError:
        return
    assert bool(value.isfinite())
    assert len(one) == 2
    assert one == two


@examples(100)
@given(
    st.sampled_from(LOSSES),
    st.one_of(st.floats(1e-30, 1e30), st.floats()),
)
def test_any_temperature(build: Callable[..., ContrastiveLoss], tau: float) -> None:
    z = torch.eye(3, requires_grad=True)
    try:
        value = build(tau)(z, z.flip(0))
    except ValueError:
        return
    assert tau > 0
    value.backward()
    assert bool(value.isfinite())
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())
