"""Identities between losses, and errors of published code that must not be here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from temperature_cases import at, close
from torch import Tensor

from macl import (
    DCL,
    CosineSchedule,
    DySTreSS,
    FastCLIP,
    FlatNCE,
    InfoNCE,
    ISogCLR,
    LearnedTemperature,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)
from macl.losses import TrainingContext

pytestmark = pytest.mark.filterwarnings("ignore:rho")
SEEDS = st.integers(0, 2**31)
SIZES = st.integers(2, 9)
TAUS = st.floats(0.05, 1.0)


def views(seed: int, n: int = 6, dim: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, dim, generator=generator, dtype=torch.float64).requires_grad_()
    return z[0], z[1]


def gradient(criterion: Any, seed: int, n: int, **extra: Any) -> Tensor:
    z1, z2 = views(seed, n)
    return torch.cat(torch.autograd.grad(criterion(z1, z2, **extra), (z1, z2)))


@given(SEEDS, SIZES, TAUS)
def test_gamma_1_gives_tau_times_dcl(seed: int, n: int, tau: float) -> None:
    indices = torch.arange(n)
    for form in ("both", "cross"):
        expected = gradient(DCL(tau, negatives=form), seed, n)  # type: ignore[arg-type]
        keywords: dict[str, Any] = {"size": n, "negatives": form}
        sog = SogCLR(tau, gamma=1.0, **keywords).double()
        isog = ISogCLR(tau, gamma=1.0, **keywords).double()
        v1 = FastCLIP(tau, version=1, gamma=1.0, **keywords).double()
        v3 = FastCLIP(tau, rho=0.1, gamma=1.0, **keywords).double()
        for _ in range(2):  # new samples, then known ones: both are u = g
            close(gradient(sog, seed, n, indices=indices), tau * expected)
            close(gradient(v1, seed, n, indices=indices), expected)
            close(gradient(v3, seed, n, indices=indices), tau * expected, 1e-6)
        close(gradient(isog, seed, n, indices=indices), tau * expected, 1e-6)
        value = SogCLR(tau, gamma=1.0, **keywords)(*views(seed, n), indices=indices)
        k = 2 * n - 2 if form == "both" else n - 1
        close(value, tau * (DCL(tau, negatives=form)(*views(seed, n)) - math.log(k)))  # type: ignore[arg-type]


@given(SEEDS, SIZES, st.sampled_from(["both", "cross"]))
def test_isogclr_without_steps_of_tau_is_sogclr(seed: int, n: int, form: Any) -> None:
    indices = torch.arange(n)
    sog = SogCLR(0.25, size=n, gamma=0.6, negatives=form).double()
    isog = ISogCLR(0.25, size=n, gamma=0.6, eta=0.0, negatives=form).double()
    for k in range(3):
        one = gradient(sog, seed + k, n, indices=indices)
        close(gradient(isog, seed + k, n, indices=indices), one)
    close(isog.state.get_buffer("log_u"), sog.state.get_buffer("log_u"))


@given(SEEDS, SIZES, TAUS)
def test_dystress_with_one_temperature_is_info_nce(seed: int, n: int, tau: float) -> None:
    close(gradient(DySTreSS(tau, tau), seed, n), gradient(NTXent(tau), seed, n))
    z = views(seed, n)
    close(DySTreSS(tau, tau)(*z), NTXent(tau)(*z).detach())


def test_dystress_s_temperature() -> None:
    s = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(5, 1)
    two = torch.stack([s, (1 - s * s).sqrt()], 1)
    found = DySTreSS(0.1, 0.2, negatives="cross", symmetric=False).contrast(one, two)
    close(found.temperature, [0.2, 0.15, 0.1, 0.15, 0.2])


def test_dystress_s_gradient_is_that_of_a_fixed_matrix_of_temperatures() -> None:
    """Published: one of the files differentiates τ(s) too."""
    z1, z2 = views(0)
    z = F.normalize(torch.cat([z1, z2]))
    s = z @ z.T
    tau = 0.1 + 0.1 * (1 + torch.cos(math.pi * (1 + s.detach()))) / 2
    logits = (s / tau).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    expected = F.cross_entropy(logits, torch.arange(12).roll(6))
    close(gradient(DySTreSS(0.1, 0.2), 0, 6), torch.cat(torch.autograd.grad(expected, (z1, z2))))


def test_dystress_warns_of_logits_that_fall() -> None:
    def falls(lowest: float, highest: float) -> bool:
        s = torch.linspace(-1, 1, 20001, dtype=torch.float64)
        tau = lowest + (highest - lowest) * torch.sin(math.pi * s / 2) ** 2
        return bool(((s / tau).diff() < 0).any())

    assert falls(0.1, 0.455)
    assert not falls(0.1, 0.445)
    with pytest.warns(UserWarning, match="does not increase"):
        DySTreSS(0.1, 0.455)
    with pytest.warns(UserWarning, match="does not increase"):
        DySTreSS(0.1, 0.6, shift=0.4)


@pytest.mark.filterwarnings("error")
def test_the_published_settings_of_dystress_do_not_warn() -> None:
    DySTreSS()
    DySTreSS(0.07, 0.2)
    DySTreSS(0.04, 0.05, shift=0.4, width=0.7)


@given(st.floats(-1, 1), st.floats(-3, 3), st.floats(0.05, 2))
def test_siglip_of_one_pair(s: float, bias: float, tau: float) -> None:
    z1 = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    z2 = torch.tensor([[s, math.sqrt(1 - s * s)]], dtype=torch.float64)
    criterion = SigLIP(tau, bias).double()
    t, b = criterion.temperature.log_scale.exp(), criterion.bias
    close(criterion(z1, z2), F.softplus(-(t * s + b)).detach())


@given(SEEDS, SIZES)
def test_siglip_divides_by_rows_and_directions_agree(seed: int, n: int) -> None:
    z1, z2 = views(seed, n)
    logits = F.normalize(z1) @ F.normalize(z2).T * 10 - 10
    y = 2 * torch.eye(n, dtype=torch.float64) - 1
    expected = -F.logsigmoid(y * logits).sum() / n
    close(SigLIP()(z1, z2), expected.detach(), 1e-6)
    close(SigLIP(symmetric=True)(z1, z2), SigLIP()(z1, z2).detach())


def test_siglip_s_scale_has_no_bound() -> None:
    """open_clip clamps t' here too."""
    criterion = SigLIP(0.001)
    criterion(*views(0))
    assert criterion.temperature.log_scale.item() == pytest.approx(math.log(1000))


@given(SEEDS, SIZES, TAUS)
def test_in_is_at_most_out(seed: int, n: int, tau: float) -> None:
    z, labels = views(seed, n), torch.arange(n) % 3
    inside = SupCon(tau, "in").contrast(*z, labels=labels).per_anchor
    outside = SupCon(tau).contrast(*z, labels=labels).per_anchor
    assert bool((inside <= outside + 1e-12).all())


@given(SEEDS, SIZES, TAUS)
def test_sup_con_of_distinct_labels_is_nt_xent(seed: int, n: int, tau: float) -> None:
    expected = gradient(NTXent(tau), seed, n)
    for labels in ({"labels": torch.arange(n)}, {"groups": torch.arange(n)}, {}):
        for form in ("out", "in"):
            close(gradient(SupCon(tau, form), seed, n, **labels), expected)  # type: ignore[arg-type]


def test_sup_con_has_the_gradient_of_its_temperature() -> None:
    """Published code multiplies by τ/0.07; and τ ≲ 0.01 gives log 0 there."""
    z1, z2 = views(1)
    labels = torch.tensor([0, 1, 0, 1, 2, 2])
    z = F.normalize(torch.cat([z1, z2]))
    for tau in (0.1, 0.003):
        logits = (z @ z.T / tau).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
        log_p = torch.log_softmax(logits, 1)
        y = labels.repeat(2)
        same = (y[:, None] == y) & ~torch.eye(12, dtype=torch.bool)
        expected = -(log_p.masked_fill(~same, 0.0).sum(1) / same.sum(1)).mean()
        close(SupCon(tau)(z1, z2, labels=labels), expected.detach())
        truth = torch.cat(torch.autograd.grad(expected, (z1, z2), retain_graph=True))
        close(gradient(SupCon(tau), 1, 6, labels=labels), truth)


@given(SEEDS, st.integers(3, 9), st.sampled_from(["both", "cross"]))
def test_the_gradient_of_tau_is_rho_less_the_divergence(seed: int, n: int, form: Any) -> None:
    """At u = g: ∂F/∂τ = ρ − KL(P̂ ‖ uniform), read off the momentum after one visit."""
    criterion = ISogCLR(0.5, size=n, rho=0.25, beta=1.0, clip=1e6, negatives=form).double()
    z1, z2 = (F.normalize(z.detach()) for z in views(seed, n))
    criterion(z1, z2, indices=torch.arange(n))
    own = torch.eye(n, dtype=torch.bool)
    blocks = [z1 @ z2.T, z2 @ z1.T]
    if form == "both":
        blocks = [torch.cat([b, z @ z.T], 1) for b, z in zip(blocks, (z1, z2), strict=True)]
        own = own.repeat(1, 2)
    divergences = []
    for s in blocks:
        p = torch.softmax((s / 0.5).masked_fill(own, -torch.inf), 1)
        k = float((~own[0]).sum())
        divergences.append(torch.special.xlogy(p, p * k).sum(1))
    both = torch.stack(divergences)
    expected = 0.25 - (both.mean(0, keepdim=True) if form == "both" else both)
    close(criterion.state.get_buffer("momentum"), expected)


def test_the_gradient_of_tau_is_the_slope_of_the_value() -> None:
    """FastCLIP v3 and TempNet at γ = 1, by central differences."""
    indices, step = torch.arange(6), 1e-5
    z = views(2)

    def value(log_tau: float) -> float:
        criterion = FastCLIP(0.25, size=6, rho=0.4, gamma=1.0).double()
        criterion.temperature.log_temperature.data.fill_(log_tau)
        return criterion(*z, indices=indices).item()

    criterion = FastCLIP(0.25, size=6, rho=0.4, gamma=1.0).double()
    criterion(*z, indices=indices).backward()
    start = float(criterion.temperature.log_temperature.detach())
    slope = (value(start + step) - value(start - step)) / (2 * step)
    close(criterion.temperature.log_temperature.grad, slope, 1e-7)
    net = TempNet(4, size=6, rho=0.4, gamma=1.0, tau_min=0.1, tau_max=0.6).double()
    net(*z, indices=indices).backward()
    offset = net.temperature.networks[1].offset
    with torch.no_grad():
        values = []
        for shift in (step, -step):
            offset += shift
            values.append(float(net(*z, indices=indices)))
            offset -= shift
    close(offset.grad, (values[0] - values[1]) / (2 * step), 1e-7)


def test_a_large_rho_drives_every_tau_to_its_floor() -> None:
    z = views(3)
    criterion = ISogCLR(0.2, size=6, rho=math.log(10), eta=0.05)
    with pytest.warns(UserWarning, match="log K = 2.30"):
        criterion(*z, indices=torch.arange(6))
    for _ in range(60):
        found = criterion.contrast(*z, indices=torch.arange(6))
    assert float(found.temperature.max()) == pytest.approx(0.05)
    assert found.floored
    assert float(found.metrics()["at_bound"]) == 1.0


def test_tempnet_s_temperatures_obey_their_bounds_and_are_not_random() -> None:
    """Published: dropout makes τ random, and an outer τmin is ignored."""
    z = views(4)
    net = TempNet(4, size=6, rho=0.1, tau_min=0.2, tau_max=0.3).double()
    one = net.contrast(*z, indices=torch.arange(6)).temperature
    two = net.contrast(*z, indices=torch.arange(6)).temperature
    assert torch.equal(one, two)
    assert float(one.min()) > 0.2
    assert float(one.max()) < 0.3
    with torch.no_grad():
        for network in net.temperature.networks:
            network.offset.fill_(1e4)
    assert float(net.contrast(*z, indices=torch.arange(6)).temperature.min()) == pytest.approx(0.3)


def test_no_gradient_flows_from_the_predicted_temperature_to_the_embeddings() -> None:
    z1, z2 = views(5)
    net = TempNet(4, size=6, rho=0.1, gamma=1.0, tau_min=0.2, tau_max=0.3).double()
    found = net.contrast(z1, z2, indices=torch.arange(6))
    tau = found.temperature
    one, two = F.normalize(z1), F.normalize(z2)
    own = torch.eye(6, dtype=torch.bool)
    s = torch.cat([one @ two.T, two @ one.T])
    s = s - (one * two).sum(1).repeat(2)[:, None]
    lse = torch.logsumexp((s / tau[:, None]).masked_fill(own.repeat(2, 1), -torch.inf), 1)
    expected = torch.autograd.grad((tau * lse).mean(), (z1, z2))
    for got, truth in zip(torch.autograd.grad(found.loss, (z1, z2)), expected, strict=True):
        close(got, truth)


def test_a_new_sample_beside_known_ones_starts_at_its_own_g() -> None:
    """Published: γ = 1 only if the whole batch is new, so a single new one gets u = γ·g."""
    z1, z2 = views(6)
    criterion = SogCLR(0.2, size=7, gamma=0.5).double()
    criterion(z1, z2, indices=torch.arange(6))
    criterion(z1, z2, indices=torch.tensor([0, 1, 2, 3, 4, 6]))
    log_u = criterion.state.get_buffer("log_u")[0]
    batch = SogCLR(0.2, size=7, gamma=1.0).double()
    batch(z1, z2, indices=torch.arange(6))
    close(log_u[6], batch.state.get_buffer("log_u")[0, 5])


def test_state_is_saved() -> None:
    """Published: u, τ and momentum are in no checkpoint."""
    names = {"state.log_u", "state.tau", "state.momentum"}
    assert names <= set(ISogCLR(size=3).state_dict())
    assert {"state.tau", "state.second", "epoch"} <= set(FastCLIP(size=3, version=2).state_dict())


def test_small_temperatures_neither_overflow_nor_vanish() -> None:
    """Published: exp(s/τ) overflows for small τ, and u is reset below 1e-35."""
    z1, z2 = (z.detach().float().requires_grad_() for z in views(7))
    for criterion in (
        SogCLR(0.002, size=6),
        SogCLR(0.002, size=6, negatives="cross"),
        FastCLIP(0.01, size=6, version=1, negatives="cross"),
        ISogCLR(0.002, size=6, tau_min=0.001),
    ):
        for _ in range(3):
            loss = criterion(z1, z2 * 1e-3 + z1, indices=torch.arange(6))
            (slope,) = torch.autograd.grad(loss, z1)
        assert loss.isfinite()
        assert slope.isfinite().all()
        assert bool(slope.any())
        assert criterion.state.get_buffer("log_u").isfinite().all()


def test_the_diagonal_is_not_a_negative() -> None:
    """Published bimodal iSogCLR leaves it in, so γ = 1 is InfoNCE there and not DCL."""
    n = 4
    isog = ISogCLR(0.25, size=n, gamma=1.0, negatives="cross").double()
    got = gradient(isog, 8, n, indices=torch.arange(n))
    close(got, 0.25 * gradient(DCL(0.25, negatives="cross"), 8, n))
    assert (got - 0.25 * gradient(InfoNCE(0.25), 8, n)).abs().max() > 1e-3


def test_fastclip_v2_has_the_factor_tau() -> None:
    n = 5
    v2 = FastCLIP(0.25, size=n, version=2, rho=0.1, gamma=1.0).double()
    got = gradient(v2, 9, n, indices=torch.arange(n))
    close(got, 0.25 * gradient(DCL(0.25, negatives="cross"), 9, n))


def test_the_first_step_of_adam_is_the_sign() -> None:
    v2 = FastCLIP(0.25, size=5, version=2, rho=0.1, eta=0.015625).double()
    v2(*views(10, 5), indices=torch.arange(5))
    moved = (v2.state.get_buffer("tau") - 0.25).abs()
    close(moved, torch.full_like(moved, 0.015625), 1e-6)


def test_the_schedule_of_the_paper_is_constant_within_an_epoch() -> None:
    schedule = CosineSchedule(0.1, 1.0, 400, per_epoch=True)
    schedule.setup(TrainingContext(samples=10, batch_size=5, steps_per_epoch=2, epochs=800))
    seen = []
    for step in range(6):
        schedule.advance(step)
        seen.append(float(schedule(at(0.0))))
    expected = [0.1 + 0.45 * (1 + math.cos(math.pi * (s // 2 + 1) / 200)) for s in range(6)]
    assert seen == pytest.approx(expected)


def test_the_schedule_can_be_set_to_a_step() -> None:
    schedule = CosineSchedule(0.1, 1.0, 8)
    schedule.advance(4)
    assert float(schedule(at(0.0))) == pytest.approx(0.1)
    schedule.advance()
    assert int(schedule.step) == 5
    criterion = NTXent(schedule)
    criterion.advance(0)
    assert int(schedule.step) == 0


def test_a_learned_temperature_without_w_is_warned_of_and_runs_to_its_bound() -> None:
    for build in (DCL, FlatNCE):
        with pytest.warns(UserWarning, match="lower bound"):
            criterion = build(LearnedTemperature(0.05, tau_min=0.02))
        z = torch.eye(4)
        optimizer = torch.optim.SGD(criterion.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            criterion(z, z).backward()
            optimizer.step()
        found = criterion.contrast(z, z)
        assert float(found.temperature) == pytest.approx(0.02)
        assert found.floored


@pytest.mark.filterwarnings("error")
def test_a_learned_temperature_with_w_is_not_warned_of() -> None:
    InfoNCE(LearnedTemperature())
    NTXent(LearnedTemperature())


def test_temperature_free_has_a_finite_slope_at_equal_positives() -> None:
    """s⁺ → 1: ∂L/∂s⁺ → −½Σ(1 + s_j)/(1 − s_j). Ports clamp s, which cuts the gradient off."""
    neg = torch.tensor([[0.3, -0.2, 0.6]], dtype=torch.float64)
    expected = -0.5 * ((1 + neg) / (1 - neg)).sum()
    for gap in (1e-3, 1e-7, 1e-12):
        pos = torch.tensor([1 - gap], dtype=torch.float64, requires_grad=True)
        loss = TemperatureFree().from_similarities(pos, neg)
        (slope,) = torch.autograd.grad(loss, pos)
        assert float(slope) == pytest.approx(float(expected), rel=5 * gap + 1e-3)


def test_a_contrast_reports_its_metrics_by_name() -> None:
    z, indices = views(11), torch.arange(6)
    own = {
        SigLIP(): {"bias"},
        SogCLR(size=6): {"log_u", "negative_ratio"},
        ISogCLR(size=6): {"log_u", "negative_ratio", "at_bound"},
        TempNet(4, size=6, rho=0.1): {"log_u", "at_bound"},
        DySTreSS(): set(),
        NTXent(): set(),
    }
    common = {"info_nce", "alignment", "temperature", "gradient_scale", "effective_anchors",
              "floored"}  # fmt: skip
    for criterion, names in own.items():
        metrics = criterion.contrast(*z, indices=indices).metrics()
        assert common | names <= set(metrics)
        for value in metrics.values():
            assert value.ndim == 0
            assert not value.requires_grad
        spread = float(metrics.get("temperature_std", 0))
        assert (spread > 0) == isinstance(criterion, DySTreSS | TempNet)
