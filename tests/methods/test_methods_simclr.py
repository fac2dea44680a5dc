"""SimCLR: one encoder for both views, negatives from the batch."""

from __future__ import annotations

import loops
import pytest
import torch
from torch import Tensor, nn

from macl import InfoNCE, NTXent
from macl.methods import SimCLR

N, IN, OUT = 5, 6, 4


def views(seed: int = 0) -> tuple[Tensor, Tensor]:
    x1, x2 = torch.randn(
        2, N, IN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return x1, x2


def parts() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh()).double()
    return encoder, nn.Linear(OUT, OUT).double()


def test_the_loss_is_that_of_the_loop() -> None:
    encoder, projector = parts()
    x1, x2 = views()
    result = SimCLR(encoder, projector, NTXent(0.2))(x1, x2)
    expected = loops.nt_xent(projector(encoder(x1)), projector(encoder(x2)), 0.2)
    assert result.loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_plain_loop_trains_it() -> None:
    encoder, projector = parts()
    method = SimCLR(encoder, projector, NTXent(0.2))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    before = method(*views()).loss.item()
    for _ in range(30):
        optimizer.zero_grad()
        method(*views()).loss.backward()
        optimizer.step()
    assert method(*views()).loss.item() < before


def test_batch_norm_sees_both_views_together() -> None:
    """One forward over 2N rows, not two over N: statistics are those of the joined batch."""
    norm = nn.BatchNorm1d(IN, momentum=1.0).double()
    x1, x2 = views()
    SimCLR(norm, nn.Identity(), NTXent())(x1, x2)
    torch.testing.assert_close(norm.running_mean, torch.cat([x1, x2]).mean(0))


def test_views_that_cannot_be_joined_take_a_forward_each() -> None:
    pool = nn.AdaptiveAvgPool1d(IN)
    x1, x2 = views()
    wide = x2.repeat_interleave(2, dim=1)  # pooling makes x2 of it again
    method = SimCLR(pool, nn.Identity(), NTXent(0.3))
    torch.testing.assert_close(method(x1, wide).loss, method(x1, x2).loss)


def test_samples_of_one_group_are_not_negatives() -> None:
    x1, x2 = views()
    x1, x2 = torch.cat([x1, x1[:1]]), torch.cat([x2, x2[:1]])
    groups = torch.tensor([0, 1, 2, 3, 4, 0])
    result = SimCLR(nn.Identity(), nn.Identity(), NTXent(0.2))(x1, x2, groups=groups)
    values = []
    for one, two in ((x1, x2), (x2, x1)):
        for i in range(N + 1):
            others = [j for j in range(N + 1) if groups[j] != groups[i]]
            negatives = [view[j] for view in (x1, x2) for j in others]
            values.append(loops.info_nce(one[i], two[i], negatives, 0.2))
    assert result.loss.item() == pytest.approx(sum(values) / len(values), abs=1e-12)


def test_a_third_view_holds_hard_negatives() -> None:
    x1, x2 = views()
    hard = views(7)[0]
    result = SimCLR(nn.Identity(), nn.Identity(), InfoNCE(0.2, symmetric=False))(x1, x2, hard)
    expected = [
        loops.info_nce(x1[i], x2[i], [x2[j] for j in range(N) if j != i] + list(hard), 0.2)
        for i in range(N)
    ]
    assert result.loss.item() == pytest.approx(sum(expected) / N, abs=1e-12)


def test_a_hard_negative_is_none_of_its_own_group() -> None:
    x1, x2 = views()
    hard = views(7)[0]
    groups = torch.cat([torch.arange(N), torch.full((N,), 2)])  # all repeat sample 2
    method = SimCLR(nn.Identity(), nn.Identity(), InfoNCE(0.2, symmetric=False))
    result = method(x1, x2, hard, groups=groups)
    expected = [
        loops.info_nce(
            x1[i], x2[i], [x2[j] for j in range(N) if j != i] + list(hard) * (i != 2), 0.2
        )
        for i in range(N)
    ]
    assert result.loss.item() == pytest.approx(sum(expected) / N, abs=1e-12)
