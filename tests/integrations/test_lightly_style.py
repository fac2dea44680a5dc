"""lightly's call, loss(z0, z1), works as it is and gives lightly's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from macl import DCL, DCLW, MACL, NTXent

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
