"""Temperatures: values, floor, schedule, learned clamp and recovery, senseless settings."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from temperature_cases import At
from temperature_cases import at as step_at

from macl import (
    MACL,
    AlignmentAdaptive,
    CosineSchedule,
    Fixed,
    InfoNCE,
    LearnedTemperature,
    NTXent,
    Temperature,
)


def at(temperature: Temperature, alignment: float) -> float:
    return temperature(step_at(alignment)).item()


@given(
    tau=st.floats(0.01, 1),
    alpha=st.floats(0, 3),
    threshold=st.floats(-1, 1),
    alignment=st.floats(-1, 1),
)
def test_adaptive_is_equation_7_above_its_floor(
    tau: float, alpha: float, threshold: float, alignment: float
) -> None:
    temperature = AlignmentAdaptive(tau, alpha, threshold)
    unbounded = tau * (1 + alpha * (alignment - threshold))
    assert at(temperature, alignment) == pytest.approx(max(unbounded, tau / 10), rel=1e-9)
    if not math.isclose(unbounded, tau / 10, rel_tol=1e-9):
        floored = temperature.is_floored(step_at(alignment))
        assert bool(floored) == (unbounded < tau / 10)


def test_the_paper_s_image_setting() -> None:
    temperature = AlignmentAdaptive(0.1, 0.5, 0.0)
    assert at(temperature, 1.0) == pytest.approx(0.15)
    assert at(temperature, 0.0) == pytest.approx(0.1)
    assert at(temperature, -1.0) == pytest.approx(0.05)


def test_the_paper_s_sentence_setting_stays_positive() -> None:
    temperature = AlignmentAdaptive(0.05, 2.0, 0.8)
    assert at(temperature, 0.8) == pytest.approx(0.05)
    assert at(temperature, 1.0) == pytest.approx(0.07)
    for alignment in (0.3, 0.0, -1.0):
        assert at(temperature, alignment) == pytest.approx(0.005)


def test_a_contrast_reports_the_floor() -> None:
    z = torch.eye(3, 8)
    criterion = MACL(0.05, 2.0, 0.8, reweight=False, floor=0.02)
    aligned, apart = criterion.contrast(z, z), criterion.contrast(z, z.roll(1, 0))
    assert not aligned.floored
    assert apart.floored
    assert float(apart.temperature) == pytest.approx(0.02)
    assert apart.loss.isfinite()


def test_the_alignment_is_detached() -> None:
    alignment = torch.tensor(0.5, requires_grad=True)
    assert not AlignmentAdaptive()(At(alignment)).requires_grad


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Fixed(0.0), "temperature"),
        (lambda: Fixed(-0.1), "temperature"),
        (lambda: Fixed(math.nan), "temperature"),
        (lambda: Fixed(math.inf), "temperature"),
        (lambda: NTXent(0.0), "temperature"),
        (lambda: MACL(temperature=-1.0), "temperature"),
        (lambda: AlignmentAdaptive(alpha=-0.1), "alpha"),
        (lambda: AlignmentAdaptive(alpha=math.inf), "alpha"),
        (lambda: AlignmentAdaptive(threshold=1.5), "threshold"),
        (lambda: AlignmentAdaptive(threshold=math.nan), "threshold"),
        (lambda: AlignmentAdaptive(floor=0.0), "floor"),
        (lambda: AlignmentAdaptive(0.1, floor=0.2), "floor"),
        (lambda: CosineSchedule(0.5, 0.1), "swap"),
        (lambda: CosineSchedule(0.0, 0.1), "tau_min"),
        (lambda: CosineSchedule(period=0), "period"),
        (lambda: LearnedTemperature(2.0), "between tau_min"),
        (lambda: LearnedTemperature(0.001), "between tau_min"),
        (lambda: LearnedTemperature(tau_min=0.0), "tau_min"),
    ],
)
def test_senseless_values_are_refused_by_name(make: object, names: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=names):
        make()


def test_cosine_swings_and_comes_back() -> None:
    temperature = CosineSchedule(0.1, 0.5, period=8)
    seen = []
    for _ in range(9):
        seen.append(at(temperature, 0.0))
        temperature.advance()
    expected = [0.1 + 0.4 * (1 + math.cos(2 * math.pi * t / 8)) / 2 for t in range(9)]
    assert seen == pytest.approx(expected)
    assert seen[0] == pytest.approx(0.5)
    assert seen[4] == pytest.approx(0.1)


def test_a_checkpoint_keeps_the_cosine_s_step() -> None:
    before, after = NTXent(CosineSchedule(period=10)), NTXent(CosineSchedule(period=10))
    assert isinstance(before.temperature, CosineSchedule)
    for _ in range(3):
        before.temperature.advance()
    after.load_state_dict(before.state_dict())
    assert at(after.temperature, 0.0) == at(before.temperature, 0.0) != 1.0


def test_learned_starts_at_its_argument_and_reaches_the_optimizer() -> None:
    criterion = InfoNCE(LearnedTemperature(0.2))
    assert at(criterion.temperature, 0.0) == pytest.approx(0.2)
    assert [name for name, _ in criterion.named_parameters()] == ["temperature.log_temperature"]


@pytest.mark.parametrize(("pushed", "bound"), [(-9.0, 0.01), (9.0, 1.0)])
def test_learned_stops_at_its_bounds_and_comes_back(pushed: float, bound: float) -> None:
    temperature = LearnedTemperature(0.07)
    parameter = temperature.log_temperature
    with torch.no_grad():
        parameter.fill_(pushed)
    tau = temperature(step_at(0.0))
    assert tau.item() == pytest.approx(bound)
    (gradient,) = torch.autograd.grad(tau, parameter)
    assert float(gradient) == pytest.approx(bound)  # not stuck: dτ/dθ = τ at the bound too
    with torch.no_grad():
        parameter.add_(-0.5 if pushed > 0 else 0.5)
    assert at(temperature, 0.0) == pytest.approx(bound * math.exp(-0.5 if pushed > 0 else 0.5))


def test_training_lowers_the_loss_through_the_temperature_alone() -> None:
    z1 = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    criterion = InfoNCE(LearnedTemperature(0.5))
    optimizer = torch.optim.SGD(criterion.parameters(), lr=0.1)
    values = []
    for _ in range(20):
        value = criterion(z1, z1)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.8 * values[0]
