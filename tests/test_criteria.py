"""Label-free criteria against loops in float64 and cases with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macl import criteria

seeds = st.integers(0, 2**31)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_alpha_is_the_slope_of_a_weighted_line(seed: int) -> None:
    z = drawn(seed, 20, 6)
    covariance = np.zeros((6, 6))
    rows = z.numpy() - z.numpy().mean(axis=0)
    for row in rows:
        covariance += np.outer(row, row)
    values = np.linalg.eigvalsh(covariance)[::-1]
    place = np.arange(1, 7)
    slope, _ = np.polyfit(np.log(place), np.log(values), 1, w=np.sqrt(1 / place))
    assert criteria.alpha_req(z).item() == pytest.approx(-slope, abs=1e-9)


def test_alpha_of_a_power_law_is_its_exponent() -> None:
    basis = torch.linalg.qr(drawn(0, 64, 64))[0] - 0
    left = torch.linalg.qr(drawn(1, 200, 65) - drawn(1, 200, 65).mean(dim=0))[0][:, :64]
    left = left - left.mean(dim=0)
    place = torch.arange(1, 65, dtype=torch.float64)
    z = left @ torch.diag(place ** (-0.7)) @ basis.T
    assert criteria.alpha_req(z).item() == pytest.approx(1.4, abs=0.02)
    with pytest.raises(ValueError, match="collapsed"):
        criteria.alpha_req(torch.ones(5, 3))


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(2, 4))
def test_lidar_equals_a_loop(seed: int, q: int) -> None:
    n, d = 12, 4
    views = drawn(seed, n, q, d) + 2 * drawn(seed + 1, n, 1, d)
    array = views.numpy()
    means = array.mean(axis=1)
    between, within = np.zeros((d, d)), np.zeros((d, d))
    for item in range(n):
        apart = means[item] - means.mean(axis=0)
        between += np.outer(apart, apart) / n
        for view in range(q):
            apart = array[item, view] - means[item]
            within += np.outer(apart, apart) / (n * q)
    within += 1e-4 * np.eye(d)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    shares = np.linalg.eigvalsh(root @ between @ root)
    shares = shares / shares.sum()
    expected = math.exp(-sum(p * math.log(p) for p in shares if p > 0))
    assert criteria.lidar(views).item() == pytest.approx(expected, rel=1e-6)


def test_lidar_counts_the_directions_that_tell_items_apart() -> None:
    """Noise of the views in all eight dimensions, items differ in three."""
    items = torch.zeros(4000, 1, 8, dtype=torch.float64)
    items[:, 0, :3] = 30 * drawn(0, 4000, 3)
    views = items + drawn(1, 4000, 2, 8)
    assert criteria.lidar(views).item() == pytest.approx(3, abs=0.05)
    with pytest.raises(ValueError, match="N, Q"):
        criteria.lidar(drawn(0, 5, 3))


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(2, 9))
def test_view_retrieval_equals_a_loop(seed: int, n: int) -> None:
    z1 = drawn(seed, n, 3)
    z2 = z1 + 0.8 * drawn(seed + 1, n, 3)
    unit = [[row / np.linalg.norm(row) for row in z.numpy()] for z in (z1, z2)]
    right = 0
    for one, other in (unit, unit[::-1]):
        for i in range(n):
            right += int(np.argmax([one[i] @ other[j] for j in range(n)])) == i
    assert criteria.view_retrieval(z1, z2).item() == pytest.approx(right / (2 * n))


def test_nothing_is_found_in_a_collapsed_view() -> None:
    assert criteria.view_retrieval(torch.ones(4, 3), torch.ones(4, 3)).item() == 0


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_the_intrinsic_dimension_equals_a_loop(seed: int) -> None:
    z = drawn(seed, 15, 4)
    total = 0.0
    for i in range(15):
        near = sorted(np.linalg.norm(z[i] - z[j]) for j in range(15) if j != i)
        total += math.log(near[1] / near[0])
    assert criteria.intrinsic_dimension(z).item() == pytest.approx(15 / total, rel=1e-9)


def test_the_intrinsic_dimension_of_a_plane_in_ten_dimensions_is_two() -> None:
    flat = torch.rand(2000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = criteria.intrinsic_dimension(flat @ drawn(1, 2, 10)).item()
    assert found == pytest.approx(2, abs=0.15)
    twice = torch.cat([flat[:500], flat[:500]])
    alone = criteria.intrinsic_dimension(flat[:500])
    torch.testing.assert_close(criteria.intrinsic_dimension(twice), alone)
    with pytest.raises(ValueError, match="three distinct"):
        criteria.intrinsic_dimension(torch.ones(9, 2))


def test_cluster_learnability_equals_a_loop() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    z = drawn(3, 40, 3)
    labels = cluster.KMeans(4, n_init=1, random_state=0).fit_predict(z.numpy())
    right = 0
    for i in range(5, 40):
        near = sorted(range(i), key=lambda j: float(np.linalg.norm(z[i] - z[j])))[:5]
        votes = [sum(labels[j] == c for j in near) for c in range(4)]
        right += int(np.argmax(votes)) == labels[i]
    found = criteria.cluster_learnability(z, clusters=4, k=5)
    assert found.item() == pytest.approx(right / 35)
    apart = 50 * torch.eye(4, dtype=torch.float64).repeat(30, 1) + drawn(5, 120, 4)
    assert criteria.cluster_learnability(apart, clusters=4, k=5) > 0.95
    with pytest.raises(ValueError, match="more than 10 rows"):
        criteria.cluster_learnability(drawn(0, 10, 2))


def test_what_training_logs_is_empty_after_collapse() -> None:
    assert set(criteria.cheap_criteria(drawn(0, 30, 4))) == {"effective_rank", "alpha_req"}
    assert criteria.cheap_criteria(torch.zeros(5, 3)) == {}
    assert criteria.cheap_criteria(torch.ones(5, 3)) == {}
    assert criteria.cheap_criteria(torch.full((5, 3), torch.nan)) == {}
