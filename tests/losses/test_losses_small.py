"""The closed form of small batches on the CPU: what it equals, and where it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from macl import DCL, HCL, MACL, ContrastiveLoss, FlatNCE, InfoNCE, NTXent
from macl.losses import Learned, small
from macl.losses.kernels import tiles
from macl.losses.objectives import info_nce

LOSSES = {
    "InfoNCE": InfoNCE,
    "NTXent": NTXent,
    "DCL": DCL,
    "FlatNCE": FlatNCE,
    "MACL": lambda tau, **form: MACL(tau, 0.5, **form),
    "MACL at its floor": lambda tau, **form: MACL(tau, 2.0, 1.0, **form),
    "MACL, not reweighted": lambda tau, **form: MACL(tau, 0.5, reweight=False, **form),
}
FORMS = {
    "both": {"negatives": "both"},
    "cross": {"negatives": "cross"},
    "one-direction": {"negatives": "cross", "symmetric": False},
}


def views(n: int, dim: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    z1, z2 = 3 * torch.randn(2, n, dim, generator=generator, dtype=dtype)
    return z1.requires_grad_(), (z1.detach() + 0.5 * z2).requires_grad_()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every loss of two views and nothing else, whether it was in closed form."""
    found: list[bool] = []
    closed = small.loss

    def watched(criterion: ContrastiveLoss, z1: Tensor, z2: Tensor) -> Tensor | None:
        loss = closed(criterion, z1, z2)
        found.append(loss is not None)
        return loss

    monkeypatch.setattr(small, "loss", watched)
    return found


@pytest.mark.parametrize("tau", [0.07, 1.0])
@pytest.mark.parametrize("n", [2, 3, 9])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_streamed_operator(
    name: str, form: str, n: int, tau: float, taken: list[bool]
) -> None:
    z1, z2 = views(n)
    got = LOSSES[name](tau, **FORMS[form])(z1, z2)
    assert taken == [True]
    # plain torch, which subtracts maxima and differentiates the objective by autograd
    expected = LOSSES[name](tau, kernel="torch", **FORMS[form])(z1, z2)
    assert taken == [True, False]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(2 * got, (z1, z2)),
        torch.autograd.grad(2 * expected, (z1, z2)),
        rtol=1e-10,
        atol=1e-12,
    )


def test_up_to_one_tile(taken: list[bool]) -> None:
    for n in (tiles.TILE // 2, tiles.TILE // 2 + 1):
        z1, z2 = views(n, dtype=torch.float32)
        criterion = MACL()
        (got,) = torch.autograd.grad(criterion(z1, z2), z1)
        (expected,) = torch.autograd.grad(criterion.contrast(z1, z2).loss, z1)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-8)
    assert taken == [True, False]


def test_other_calls_take_the_general_way(taken: list[bool]) -> None:
    z1, z2 = views(6)
    groups = torch.arange(6)

    class Twice(NTXent):
        def objective(self, pairs: Any, logits: Any, x: Tensor) -> Tensor:
            return 2 * info_nce(x)

    NTXent()(z1, z2, groups=groups)
    NTXent()(z1, z2, weights=torch.ones(6))
    NTXent()(z1, z2, bank=z1.detach())
    assert not taken
    NTXent(reduction="none")(z1, z2)
    NTXent(gather=True)(z1, z2)
    NTXent(Learned())(z1, z2)
    NTXent(0.001)(z1, z2)  # e^1000 leaves float64's range
    NTXent()(z1.bfloat16(), z2.bfloat16())
    NTXent()(torch.cat([z1[:5], 0 * z1[5:]]), z2)
    InfoNCE()(z1, torch.cat([z2[:5], 0 * z2[5:]]))
    HCL()(z1, z2)
    torch.testing.assert_close(Twice()(z1, z2), 2 * NTXent()(z1, z2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        NTXent()(z1, z2)
    assert taken == [False] * 9 + [True, False]


def test_gradient_of_one_view_or_of_none(taken: list[bool]) -> None:
    z1, z2 = views(6)
    criterion = MACL()
    whole = torch.autograd.grad(criterion(z1, z2), (z1, z2))
    for leaf, expected in zip((z1, z2), whole, strict=True):
        other = [z if z is leaf else z.detach() for z in (z1, z2)]
        loss = criterion(*other)
        assert torch.equal(torch.autograd.grad(loss, leaf)[0], expected)
    assert not criterion(z1.detach(), z2.detach()).requires_grad
    with torch.no_grad():
        assert criterion(z1, z2) == loss
    assert all(taken)


def test_backward_again_and_twice() -> None:
    z1, z2 = views(6)
    loss = MACL()(z1, z2)
    first, second = (torch.autograd.grad(loss, z1, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, z1, create_graph=True)


@pytest.mark.parametrize("form", FORMS)
def test_bad_rows_are_named(form: str) -> None:
    z1, z2 = views(6)
    with torch.no_grad():
        z2[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"z2 has NaN.*row 3"):
        NTXent(**FORMS[form])(z1, z2)
    assert small.fits(z1, z2, both=form == "both")
