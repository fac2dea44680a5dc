"""lightly's call, loss(z0, z1), works as it is and gives lightly's numbers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl import DCL, DCLW, MACL, NTXent
from macl.integrations.lightly import MemoryBankLoss, NTXentLoss

lightly_loss = pytest.importorskip("lightly.loss", reason="needs lightly")


def views(n: int, d: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    z0, z1 = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    return z0.requires_grad_(), (z0.detach() + z1).requires_grad_()


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("n", [2, 7, 64])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NTXent(temperature=0.5), "NTXentLoss(temperature=0.5)"),
        (NTXent(temperature=0.1), "NTXentLoss(temperature=0.1)"),
        (DCL(temperature=0.1), "DCLLoss(temperature=0.1)"),
        (DCLW(temperature=0.1, sigma=0.5), "DCLWLoss(temperature=0.1, sigma=0.5)"),
        (MACL(0.5, alpha=0.5, threshold=0.1), "MACLLoss(0.5, alpha=0.5, A_0=0.1)"),
    ],
    ids=lambda value: value.split("(")[0] if isinstance(value, str) else "",
)
def test_the_same_call_gives_the_same_value_and_gradient(ours: Any, theirs: str, n: int) -> None:
    z0, z1 = views(n)
    name, arguments = theirs.split("(", 1)
    peer = eval(f"cls({arguments}", {"cls": getattr(lightly_loss, name)})
    # lightly's MACL adds 1e-8 to 1 − P, which shows in the seventh digit
    tolerance = 1e-6 if name == "MACLLoss" else 1e-10
    a, b = ours(z0, z1), peer(z0, z1)
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for grad, expected in zip(
        torch.autograd.grad(a, (z0, z1)), torch.autograd.grad(b, (z0, z1)), strict=True
    ):
        torch.testing.assert_close(grad, expected, rtol=10 * tolerance, atol=tolerance)


def test_the_memory_bank_is_an_argument() -> None:
    z0, z1 = views(8)
    peer = lightly_loss.NTXentLoss(temperature=0.2, memory_bank_size=(32, 16)).double()
    bank = peer.memory_bank.bank.clone()  # before the call, which puts z1 into it
    torch.testing.assert_close(NTXent(temperature=0.2)(z0, z1, bank=bank), peer(z0, z1))


@pytest.mark.parametrize("size", [0, (32, 16), (8, 16), (5, 16), (20, 16)])
def test_lightlys_constructor_gives_lightlys_values_step_by_step(size: Any) -> None:
    torch.manual_seed(0)
    peer = lightly_loss.NTXentLoss(temperature=0.2, memory_bank_size=size).double()
    torch.manual_seed(0)
    ours = NTXentLoss(temperature=0.2, memory_bank_size=size).double()
    for step in range(6):
        z0, z1 = views(8 - step % 2)
        if step == 3:  # evaluation: nothing is written
            z0, z1 = z0.detach(), z1.detach()
        a, b = ours(z0, z1), peer(z0, z1)
        torch.testing.assert_close(a, b)
        if z0.requires_grad:
            # After the write into the bank, which must not change the gradient.
            for grad, expected in zip(
                torch.autograd.grad(a, (z0, z1)), torch.autograd.grad(b, (z0, z1)), strict=True
            ):
                torch.testing.assert_close(grad, expected)
        if size:
            torch.testing.assert_close(ours.memory_bank.bank, peer.memory_bank.bank)


def test_lightlys_arguments_and_defaults() -> None:
    ours, theirs = map(inspect.signature, (NTXentLoss, lightly_loss.NTXentLoss))
    for name, parameter in theirs.parameters.items():
        assert ours.parameters[name].default == parameter.default
    assert list(ours.parameters) == list(theirs.parameters)
    assert set(NTXentLoss(0.5, (4, 2)).state_dict()) == set(
        lightly_loss.NTXentLoss(0.5, (4, 2)).state_dict()
    )


@pytest.mark.parametrize(
    "criterion", [DCL(0.1), DCLW(0.1), MACL(0.1)], ids=lambda c: type(c).__name__
)
def test_any_loss_of_the_family_takes_a_memory_bank(criterion: Any) -> None:
    z0, z1 = views(8)
    loss = MemoryBankLoss(criterion, (12, 16)).double()
    before = loss.memory_bank.bank.clone()
    torch.testing.assert_close(loss(z0, z1), criterion(z0, z1, bank=before))
    changed = (loss.memory_bank.bank != before).any(1)
    assert changed.tolist() == [True] * 8 + [False] * 4


@pytest.mark.parametrize("size", [4096, (4096,), (-1, 2), (4, 0), (1, 2, 3)])
def test_a_bank_needs_rows_and_a_dimension(size: Any) -> None:
    with pytest.raises(ValueError, match=r"\(rows, dimension\)"):
        NTXentLoss(memory_bank_size=size)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_weight_fn_of_lightly(sigma: float) -> None:
    """docs/losses.md: weight_fn scales the positive term; `weights` would scale the whole pair."""
    z0, z1 = views(16)

    def weight_fn(u0: Tensor, u1: Tensor) -> Tensor:
        return 2 - len(u0) * torch.softmax((u0 * u1).sum(1).detach() / sigma, 0)

    peer = lightly_loss.DCLLoss(temperature=0.1, weight_fn=weight_fn)
    s = torch.cosine_similarity(z0, z1)
    w = weight_fn(F.normalize(z0, dim=1), F.normalize(z1, dim=1))
    ours = DCL(0.1)(z0, z1) + ((1 - w) * s / 0.1).mean()
    torch.testing.assert_close(ours, peer(z0, z1))
    torch.testing.assert_close(
        torch.autograd.grad(ours, z0)[0], torch.autograd.grad(peer(z0, z1), z0)[0]
    )
