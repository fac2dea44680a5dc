"""Arguments of the wrong kind are answered in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import macl

Z1, Z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("criterion", [macl.MACL(), macl.NTXent(), macl.SigLIP(), macl.DCLW()])
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_transforms_of_torch_func_are_refused(
    criterion: Any, transform: Callable[..., Any]
) -> None:
    z = Z1[None] if transform is torch.func.vmap else Z1
    with pytest.raises(ValueError, match=r"not supported: use torch\.autograd\.grad"):
        transform(lambda z: criterion(z, Z2))(z)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: macl.MACL("0.1"), "write 0.1, not '0.1'"),
        (lambda: macl.MACL()(Z1, Z2, groups=[0] * 6), "groups is a tensor of integers"),
        (lambda: macl.MACL()(Z1[None], Z2[None]), "two-dimensional"),
    ],
)
def test_mistakes_are_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
