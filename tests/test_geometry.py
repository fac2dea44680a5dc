from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from macl import geometry as geo

seeds = st.integers(0, 2**31)
temperatures = st.floats(0.05, 2.0)


def embeddings(seed: int, n: int = 9, d: int = 5) -> Tensor:
    return 3 * torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def similarities(seed: int, n: int = 4, k: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = 2 * torch.rand(n, k + 1, dtype=torch.float64, generator=generator) - 1
    return both[:, 0], both[:, 1:]


def unit(z: Tensor) -> np.ndarray:
    rows = z.numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(deadline=None)
@given(seeds)
def test_alignment_is_the_mean_cosine(seed: int) -> None:
    z1, z2 = embeddings(seed), embeddings(seed + 1)
    expected = np.mean([f @ g for f, g in zip(unit(z1), unit(z2), strict=True)])
    loss = np.mean([np.sum((f - g) ** 2) for f, g in zip(unit(z1), unit(z2), strict=True)])
    assert geo.alignment(z1, z2).item() == pytest.approx(expected, abs=1e-12)
    assert geo.alignment(z1, z2).item() == pytest.approx(1 - loss / 2, abs=1e-12)


@settings(deadline=None)
@given(seeds, st.integers(2, 9), st.integers(1, 90), st.floats(0.5, 4))
def test_uniformity_equals_a_loop_for_every_chunk(seed: int, n: int, chunk: int, t: float) -> None:
    z = embeddings(seed, n)
    u = unit(z)
    potentials = [
        math.exp(-t * np.sum((u[i] - u[j]) ** 2)) for i in range(n) for j in range(n) if i != j
    ]
    value = geo.uniformity(z, t=t, chunk=chunk).item()
    assert value == pytest.approx(math.log(np.mean(potentials)), abs=1e-10)


def test_uniformity_is_zero_at_collapse_survives_a_huge_t_and_has_finite_gradients() -> None:
    assert geo.uniformity(torch.ones(7, 3)).item() == pytest.approx(0, abs=1e-5)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert geo.uniformity(opposite, t=1000).item() == pytest.approx(-4000)
    z = embeddings(0).requires_grad_()
    geo.uniformity(z, chunk=1).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert z.grad.abs().sum() > 0


@settings(deadline=None)
@given(seeds, st.integers(4, 12), st.integers(1, 3))
def test_tolerance_equals_a_loop_over_pairs(seed: int, n: int, classes: int) -> None:
    z = embeddings(seed, n)
    labels = torch.arange(n) % classes * 7
    u = unit(z)
    same = [u[i] @ u[j] for i in range(n) for j in range(n) if i != j and labels[i] == labels[j]]
    assert geo.tolerance(z, labels).item() == pytest.approx(np.mean(same), abs=1e-12)


def test_tolerance_needs_a_pair() -> None:
    with pytest.raises(ValueError, match="two members"):
        geo.tolerance(embeddings(0, 3), torch.arange(3))
    with pytest.raises(ValueError, match="one per row"):
        geo.tolerance(embeddings(0, 3), torch.zeros(4))


def test_effective_rank_counts_equal_directions_and_matches_numpy() -> None:
    for rank in (1, 3, 5):
        z = torch.zeros(20, 8, dtype=torch.float64)
        z[:rank, :rank] = 4 * torch.eye(rank)
        assert geo.effective_rank(z).item() == pytest.approx(rank)
    z = embeddings(1)
    s = np.linalg.svd(z.numpy(), compute_uv=False)
    p = s / s.sum()
    assert geo.effective_rank(z).item() == pytest.approx(math.exp(-np.sum(p * np.log(p))))
    with pytest.raises(ValueError, match="collapsed"):
        geo.effective_rank(torch.zeros(4, 4))


@settings(deadline=None)
@given(seeds, temperatures)
def test_weights_and_gradient_scale_equal_the_paper_s_fractions(seed: int, tau: float) -> None:
    pos, neg = similarities(seed)
    scale = geo.gradient_scale(pos, neg, tau)
    weights = geo.negative_weights(neg, tau)
    spread = geo.entropy(neg, tau)
    for i in range(len(pos)):
        e_pos = math.exp(pos[i] / tau)
        e_neg = [math.exp(s / tau) for s in neg[i]]
        p_hat = [e / sum(e_neg) for e in e_neg]
        assert scale[i].item() == pytest.approx(1 - e_pos / (e_pos + sum(e_neg)), abs=1e-12)
        assert weights[i].tolist() == pytest.approx(p_hat)
        h = -sum(p * math.log(p) for p in p_hat)
        assert spread[i].item() == pytest.approx(h, abs=1e-12)


def test_gradient_scale_keeps_its_digits_for_easy_positives() -> None:
    # exp(40) neither overflows nor rounds W to 0, even from half precision.
    pos, neg = torch.tensor([1.0]), torch.full((1, 8), -1.0)
    expected = 8 * math.exp(-40)
    assert geo.gradient_scale(pos, neg, 0.05).item() == pytest.approx(expected, rel=1e-5)
    assert geo.gradient_scale(pos.half(), neg.half(), 0.05).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_the_entropy_runs_from_one_negative_to_all() -> None:
    neg = torch.tensor([[0.9, 0.1, -0.3, -0.8]], dtype=torch.float64)
    assert geo.entropy(neg, 1e-3).exp().item() == pytest.approx(1)
    assert geo.entropy(neg, 1e6).exp().item() == pytest.approx(4)
    counts = [geo.entropy(neg, t).item() for t in (0.05, 0.1, 0.2, 0.5, 1.0)]
    assert counts == sorted(counts)


@settings(deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), temperatures)
def test_proposition_1(pos: float, neg: float, tau: float) -> None:
    k = torch.tensor([1.0, 2.0, 16.0, 256.0, 4096.0], dtype=torch.float64)
    curve = geo.proposition1(k, pos, neg, tau)
    for size, value in zip((1, 2, 16), curve, strict=False):
        direct = geo.gradient_scale(
            torch.tensor([pos], dtype=torch.float64),
            torch.full((1, size), neg, dtype=torch.float64),
            tau,
        )
        assert value.item() == pytest.approx(direct.item(), rel=1e-9)
    assert (curve.diff() >= 0).all()
    limit = geo.proposition1(torch.tensor([1e30], dtype=torch.float64), pos, neg, tau)
    assert limit.item() == pytest.approx(1, abs=1e-9)


@settings(deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(1, 10_000))
def test_proposition_2(pos: float, neg: float, k: int) -> None:
    tau = torch.tensor([0.05, 0.1, 0.5, 1.0, 5.0], dtype=torch.float64)
    curve = geo.proposition2(tau, pos, neg, k)
    for t, value in zip(tau, curve, strict=True):
        same = geo.proposition1(torch.tensor([k], dtype=torch.float64), pos, neg, t.item())
        assert value.item() == pytest.approx(same.item(), rel=1e-9)
    direction = 1 if pos > neg else -1
    assert (direction * curve.diff() >= -1e-15).all()
    limit = geo.proposition2(torch.tensor([1e12], dtype=torch.float64), pos, neg, k)
    assert limit.item() == pytest.approx(k / (k + 1), rel=1e-9)


def test_wrong_input_is_named() -> None:
    pos, neg = similarities(0)
    with pytest.raises(ValueError, match="above 0"):
        geo.gradient_scale(pos, neg, 0.0)
    with pytest.raises(ValueError, match="above 0"):
        geo.proposition2(torch.tensor([0.1, -1.0]))
    with pytest.raises(ValueError, match=r"pos must be \(N,\)"):
        geo.gradient_scale(pos[:, None], neg, 0.1)
    with pytest.raises(ValueError, match="shapes must be equal"):
        geo.alignment(embeddings(0, 3), embeddings(0, 4))
    with pytest.raises(ValueError, match="at least 2 rows"):
        geo.uniformity(embeddings(0, 1))
    with pytest.raises(ValueError, match="at least one negative"):
        geo.proposition1(torch.tensor([0.0]))
