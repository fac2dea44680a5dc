"""Extreme similarities, half precision and compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from macl import (
    ContrastiveLoss,
    DySTreSS,
    FastCLIP,
    ISogCLR,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)

pytestmark = pytest.mark.filterwarnings("ignore:rho")
N, DIM = 8, 4
STATELESS: dict[str, Any] = {
    "dystress": DySTreSS,
    "shifted": lambda **form: DySTreSS(0.04, 0.05, shift=0.4, **form),
    "temperature-free": TemperatureFree,
    "siglip": SigLIP,
    "sup-con": SupCon,
    "sup-con in": lambda **form: SupCon(variant="in", **form),
}
LOSSES: dict[str, Any] = {
    **STATELESS,
    "sogclr": lambda **form: SogCLR(size=N, **form),
    "isogclr": lambda **form: ISogCLR(size=N, **form),
    **{f"fastclip v{v}": lambda v=v, **form: FastCLIP(size=N, version=v, **form) for v in range(4)},
    "tempnet": lambda **form: TempNet(DIM, size=N, **form),
}


def arguments(name: str, n: int = N) -> dict[str, Tensor]:
    if name.startswith("sup-con"):
        return {"labels": torch.arange(n) % 3}
    return {} if name in STATELESS else {"indices": torch.arange(n)}


def rows(seed: int = 0) -> Tensor:
    return torch.randn(N, DIM, generator=torch.Generator().manual_seed(seed))


EXTREME = {
    "identical rows": (torch.ones(N, DIM), torch.ones(N, DIM)),
    "opposite rows": (torch.ones(N, DIM), -torch.ones(N, DIM)),
    "equal positives": (rows(), rows()),
    "opposite positives": (rows(), -rows()),
    "axes": (torch.eye(DIM).repeat(2, 1), -torch.eye(DIM).repeat(2, 1)),
    "zero rows": (torch.zeros(N, DIM), rows()),
    "large and small": (rows() * 1e18, rows(1) * 1e-18),
}


@pytest.mark.parametrize("form", ["both", "cross"])
@pytest.mark.parametrize("extreme", EXTREME)
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_similarities_are_finite(name: str, extreme: str, form: Any) -> None:
    criterion: ContrastiveLoss = LOSSES[name](negatives=form)
    z1, z2 = (z.clone().requires_grad_() for z in EXTREME[extreme])
    for _ in range(2):
        found = criterion.contrast(z1, z2, **arguments(name))
        gradients = torch.autograd.grad(found.loss, (z1, z2))
    assert found.loss.isfinite()
    for gradient in gradients:
        assert gradient.isfinite().all()
    for value in (*found.metrics().values(), *criterion.parameters()):
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    criterion: ContrastiveLoss = LOSSES[name]()
    torch.manual_seed(0)
    other: ContrastiveLoss = LOSSES[name]()
    half = [rows(k).to(dtype).requires_grad_() for k in (0, 1)]
    with torch.autocast("cpu", dtype=dtype if dtype == torch.bfloat16 else torch.float16):
        loss = criterion(*half, **arguments(name))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, other(*(z.float() for z in half), **arguments(name)))
    loss.backward()
    for leaf in (*half, *criterion.parameters()):
        assert leaf.grad is None or leaf.grad.isfinite().all()
    assert all(z.grad is not None and bool(z.grad.any()) for z in half)


@pytest.mark.parametrize("name", [*STATELESS, "positives"])
def test_compiled_graphs_are_whole(name: str) -> None:
    torch._dynamo.reset()
    build = STATELESS.get(name, NTXent)
    extra = {"positives": torch.arange(N) % 3} if name == "positives" else arguments(name)
    criterion: ContrastiveLoss = build().double()
    z1, z2 = (rows(k).double().requires_grad_() for k in (0, 1))
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    got, expected = compiled(z1, z2, **extra), criterion(z1, z2, **extra)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    leaves = (z1, z2, *criterion.parameters())
    for one, two in zip(
        torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_weights_and_reduction() -> None:
    weights = torch.linspace(0.5, 2, N)
    for name, build in LOSSES.items():
        torch.manual_seed(0)
        mean = build()(rows(), rows(1), weights=weights, **arguments(name))
        torch.manual_seed(0)
        found = build(reduction="none").contrast(
            rows(), rows(1), weights=weights, **arguments(name)
        )
        repeated = weights.repeat(len(found.per_anchor) // N)
        torch.testing.assert_close(found.loss, found.per_anchor * repeated)
        torch.testing.assert_close(mean, found.loss.sum() / repeated.sum())
