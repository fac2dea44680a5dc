"""What the papers say about each other: equal gradients, equal forms, Algorithm 1."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from macl import DCL, MACL, ContrastiveLoss, DualTemperature, FlatNCE, InfoNCE, NTXent

Views = tuple[Tensor, Tensor]
seeds = st.integers(0, 2**31)


def views(seed: int, n: int = 6, dim: int = 5) -> Views:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    return z[0].requires_grad_(), z[1].requires_grad_()


def gradients(criterion: ContrastiveLoss, z: Views) -> Tensor:
    return torch.cat(torch.autograd.grad(criterion(*z), z))


@pytest.mark.parametrize("negatives", ["both", "cross"])
@settings(max_examples=10)
@given(seed=seeds, tau=st.sampled_from((0.05, 0.2, 1.0)))
def test_dcl_flat_nce_and_macl_without_alpha_have_one_gradient(
    negatives: str, seed: int, tau: float
) -> None:
    z = views(seed)
    expected = gradients(DCL(tau, negatives=negatives), z)
    for other in (FlatNCE(tau, negatives=negatives), MACL(tau, 0.0, negatives=negatives)):
        torch.testing.assert_close(gradients(other, z), expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=10)
@given(seed=seeds, tau=st.sampled_from((0.05, 0.2)), beta=st.sampled_from((2.0, 10.0)))
def test_dual_is_the_gradient_of_x_times_the_scale_at_tau_beta(
    seed: int, tau: float, beta: float
) -> None:
    z = views(seed)
    scale = NTXent(beta * tau).contrast(*z).gradient_scale
    per_anchor = DCL(tau, reduction="none")(*z)
    expected = torch.cat(torch.autograd.grad((scale * per_anchor).mean(), z))
    torch.testing.assert_close(
        gradients(DualTemperature(tau, beta), z), expected, rtol=1e-10, atol=1e-12
    )


def algorithm_1(pos: Tensor, neg: Tensor, t_0: float, a: float, a_0: float) -> Tensor:
    """The paper's pseudocode, line by line."""
    alignment = torch.mean(pos.detach())
    t = t_0 * (1 + a * (alignment - a_0))
    logits = torch.cat([pos, neg], dim=1)
    p = torch.softmax(logits / t, dim=1)[:, 0]
    v = 1 / (1 - p)
    return (-v.detach() * torch.log(p)).mean()


@settings(max_examples=20)
@given(seed=seeds, setting=st.sampled_from(((0.1, 0.5, 0.0), (0.5, 1.0, 0.6), (0.2, 0.0, 0.0))))
def test_macl_is_algorithm_1_where_that_is_finite(
    seed: int, setting: tuple[float, float, float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    pos = (torch.rand(4, 1, generator=generator, dtype=torch.float64) - 0.5).requires_grad_()
    neg = (torch.rand(4, 7, generator=generator, dtype=torch.float64) - 0.5).requires_grad_()
    expected = algorithm_1(pos, neg, *setting)
    value = MACL(*setting).from_similarities(pos, neg)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    for got, truth in zip(
        torch.autograd.grad(value, (pos, neg)),
        torch.autograd.grad(expected, (pos, neg)),
        strict=True,
    ):
        torch.testing.assert_close(got, truth, rtol=1e-8, atol=1e-12)


def test_macl_is_finite_where_algorithm_1_is_not() -> None:
    pos, neg = torch.full((2, 1), 1.0), torch.full((2, 3), -1.0)
    assert not algorithm_1(pos, neg, 0.05, 0.0, 0.0).isfinite()
    assert MACL(0.05, 0.0).from_similarities(pos, neg) == pytest.approx(1.0)


def test_views_and_similarities_agree() -> None:
    z = views(3)
    unit = [F.normalize(v, dim=1) for v in z]
    s = unit[0] @ unit[1].T
    pos = s.diagonal()[:, None]
    neg = s[~torch.eye(6, dtype=torch.bool)].view(6, 5)
    criterion = MACL(negatives="cross", symmetric=False)
    torch.testing.assert_close(
        criterion(*z), criterion.from_similarities(pos, neg), rtol=1e-12, atol=0
    )


def masked_cross_entropy(z: Views, tau: float) -> Tensor:
    """NT-Xent as it is usually written: 2N logits, the diagonal masked."""
    rows = F.normalize(torch.cat(z), dim=1)
    logits = (rows @ rows.T / tau).masked_fill(torch.eye(len(rows), dtype=torch.bool), -torch.inf)
    n = len(rows) // 2
    return F.cross_entropy(logits, (torch.arange(2 * n) + n) % (2 * n))


@settings(max_examples=10)
@given(seed=seeds, tau=st.sampled_from((0.05, 0.5)))
def test_nt_xent_is_masked_cross_entropy(seed: int, tau: float) -> None:
    z = views(seed)
    expected = masked_cross_entropy(z, tau)
    torch.testing.assert_close(NTXent(tau)(*z), expected, rtol=1e-10, atol=0)
    truth = torch.cat(torch.autograd.grad(expected, z))
    torch.testing.assert_close(gradients(NTXent(tau), z), truth, rtol=1e-10, atol=1e-12)


@settings(max_examples=10)
@given(seed=seeds, tau=st.sampled_from((0.05, 0.5)))
def test_cross_info_nce_is_clip_cross_entropy(seed: int, tau: float) -> None:
    z = views(seed)
    logits = F.normalize(z[0], dim=1) @ F.normalize(z[1], dim=1).T / tau
    target = torch.arange(6)
    forward = F.cross_entropy(logits, target)
    expected = (forward + F.cross_entropy(logits.T, target)) / 2
    torch.testing.assert_close(InfoNCE(tau)(*z), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(InfoNCE(tau, symmetric=False)(*z), forward, rtol=1e-10, atol=0)


def test_first_view_s_own_scale_does_not_matter() -> None:
    z = views(5)
    torch.testing.assert_close(MACL()(z[0] * 7, z[1] * 0.1), MACL()(*z), rtol=1e-12, atol=0)


def test_an_anchor_without_any_negatives_has_no_gradient() -> None:
    """Not in the batch and not among hard negatives: all are duplicates of each other."""
    z1, z2, hard = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    leaves = [z.requires_grad_() for z in (z1, z2, hard)]
    same = torch.zeros(3, dtype=torch.int64)
    loss = InfoNCE()(z1, z2, groups=same, hard=hard, hard_groups=same)
    assert loss.item() == 0
    assert all(bool((g == 0).all()) for g in torch.autograd.grad(loss, leaves))
