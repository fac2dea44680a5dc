"""The spread of W and τ over anchors: effective anchors, mean, standard deviation, histogram."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from temperature_cases import close

from macl import DySTreSS, ISogCLR, NTXent, TemperatureFree
from macl.losses import output as spread

BOUNDS = (0.05, 1.0)


def anchors(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    margin = 4 * torch.randn(n, generator=generator, dtype=torch.float64)
    return margin, 0.05 * 20 ** torch.rand(n, generator=generator, dtype=torch.float64)


def test_the_figures_are_those_of_the_definitions() -> None:
    margin, tau = anchors(23)
    w = torch.sigmoid(margin)
    found = spread.Spread.of(margin, tau, BOUNDS)
    close(found.effective_anchors, w.sum() ** 2 / (23 * w.square().sum()))
    close(found.mean, tau.mean())
    close(found.std, ((tau - tau.mean()).square().sum() / 23).sqrt())
    edges = torch.tensor(spread.edges(BOUNDS), dtype=torch.float64)
    counts, _ = torch.histogram(tau, edges)
    assert found.histogram is not None
    close(found.histogram, counts / 23)


def test_far_margins_do_not_underflow() -> None:
    margin, tau = torch.tensor([-900.0, -901.0], dtype=torch.float64), torch.full((2,), 0.1)
    w = torch.tensor([1.0, math.exp(-1)], dtype=torch.float64)
    found = spread.Spread.of(margin, tau)
    close(found.effective_anchors, w.sum() ** 2 / (2 * w.square().sum()))
    none = spread.Spread.of(torch.full((3,), -math.inf), torch.full((3,), 0.1))
    assert float(none.effective_anchors) == 0


def test_temperatures_outside_the_bounds_count_at_the_ends() -> None:
    tau = torch.tensor([0.001, 0.05, 0.999999, 1.0, 7.0])
    found = spread.Spread.of(torch.zeros(5), tau, BOUNDS).histogram
    assert found is not None
    assert found.tolist() == pytest.approx([0.4, *[0] * 8, 0.6])


def test_the_columns_say_which_bin_they_are() -> None:
    names = spread.columns(BOUNDS)
    assert len(names) == spread.BINS
    parsed = [spread.parse_column(name) for name in names]
    assert parsed[0] is not None
    assert parsed[0][0] == 0.05
    for one, two in itertools.pairwise(parsed):
        assert one is not None
        assert two is not None
        assert one[1] == two[0]
    assert spread.parse_column("temperature") is None


def test_a_contrast_has_a_histogram_where_anchors_have_their_own_temperature() -> None:
    generator = torch.Generator().manual_seed(1)
    z1, z2 = torch.randn(2, 6, 4, generator=generator)
    for criterion in (DySTreSS(), TemperatureFree(), ISogCLR(size=6)):
        found = criterion.contrast(z1, z2, indices=torch.arange(6))
        assert found.temperature_histogram is not None
        assert float(found.temperature_histogram.sum()) == pytest.approx(1)
        shares = {n: float(v) for n, v in found.metrics().items() if spread.is_bin(n)}
        assert len(shares) == spread.BINS
        for name, share in shares.items():
            low, high = spread.parse_column(name) or (0.0, 0.0)
            inside = (found.temperature > low * 0.999) & (found.temperature < high * 1.001)
            assert share <= float(inside.double().mean()) + 1e-6 or low == 0.005
    for criterion in (NTXent(), DySTreSS(0.1, 0.1)):
        found = criterion.contrast(z1, z2)
        assert found.temperature_histogram is None
        assert not any(map(spread.is_bin, found.metrics()))
