"""The public checks pass for what is right and fail for what is wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from macl import MACL, NTXent
from macl.testing import assert_ddp_exact, assert_linear_memory, assert_matches_reference

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)


def plain(z1: Tensor, z2: Tensor, temperature: float = 0.1) -> Tensor:
    """NT-Xent by the whole matrix."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    n = len(z1)
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, (torch.arange(2 * n) + n) % (2 * n))


def local(z1: Tensor, z2: Tensor) -> Tensor:
    """Each rank by itself."""
    return plain(z1, z2)


def summed(z1: Tensor, z2: Tensor) -> Tensor:
    """Right, but for a factor in the gradient alone."""
    value = MACL(gather=True).double()(z1, z2)
    return 2 * value - value.detach()


@needs_gloo
@pytest.mark.slow
def test_ddp_exact() -> None:
    assert_ddp_exact(MACL(alpha=1.0, gather=True), worlds=(2, 3))


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "message"), [(local, "the mean loss is"), (summed, "they are 2 of it")]
)
def test_what_is_not_exact_is_named(loss: Any, message: str) -> None:
    alone = MACL() if loss is summed else None
    with pytest.raises(AssertionError, match=message):
        assert_ddp_exact(loss, alone=alone, worlds=(2,))


def clip_loss(rank: int, world: int) -> Any:
    """open_clip's loss as it is by default: rows are gathered without gradient."""
    from open_clip.loss import ClipLoss

    return partial(_clip, ClipLoss(rank=rank, world_size=world))


def _clip(loss: Any, one: Tensor, two: Tensor) -> Tensor:
    scale = torch.tensor(10.0, dtype=torch.float64)
    value: Tensor = loss(F.normalize(one, dim=1), F.normalize(two, dim=1), scale)
    return value


@needs_gloo
@pytest.mark.slow
def test_rows_gathered_without_gradient_are_noticed() -> None:
    pytest.importorskip("open_clip")
    with pytest.raises(AssertionError, match=r"gradients differ .* along them they are 0.5 of it"):
        assert_ddp_exact(clip_loss, alone=clip_loss(0, 1), per_rank=True, worlds=(2,))


def test_matches_reference() -> None:
    assert_matches_reference(NTXent(temperature=0.1), plain)
    with pytest.raises(AssertionError, match=r"N=2, D=3: the value differs by"):
        assert_matches_reference(NTXent(temperature=0.2), plain)


def test_linear_memory() -> None:
    assert_linear_memory(MACL())
    with pytest.raises(AssertionError, match="the peak memory grows from"):
        assert_linear_memory(plain, rows=(256, 512))
