from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from macl.core.errors import UserError
from macl.optim import build_schedule, learning_rate_factor
from macl.recipes.optim import ScheduleConfig


def factors(total: int, warmup: int, **settings: object) -> list[float]:
    config = ScheduleConfig.model_validate(settings)
    return [learning_rate_factor(config, step, total, warmup) for step in range(total + 1)]


def test_cosine_after_warm_up() -> None:
    values = factors(110, 10, name="cosine")
    assert values[0] == pytest.approx(1 / 11)
    assert values[9] == pytest.approx(10 / 11)
    assert values[10] == 1
    assert values[35] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert values[60] == pytest.approx(0.5)
    assert values[110] == pytest.approx(0)
    assert values[109] > 0


def test_cosine_matches_torch_without_warm_up() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.1)
    for value in factors(20, 0, name="cosine", final_lr_factor=0.1):
        assert value == pytest.approx(reference.get_last_lr()[0])
        optimizer.step()
        reference.step()


def test_linear_constant_and_steps() -> None:
    assert factors(4, 0, name="linear", final_lr_factor=0.2) == pytest.approx(
        [1, 0.8, 0.6, 0.4, 0.2]
    )
    assert factors(4, 2, name="constant") == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])
    values = factors(10, 1, name="steps", milestones=(0.6, 0.8))
    assert values == pytest.approx([0.5] + [1] * 5 + [0.1] * 2 + [0.01] * 3)


@settings(deadline=None)
@given(
    st.sampled_from(["cosine", "linear", "constant"]),
    st.integers(1, 60),
    st.integers(0, 59),
    st.floats(0, 1),
)
def test_rises_then_never_rises_again(name: str, total: int, warmup: int, final: float) -> None:
    warmup = min(warmup, total - 1)
    values = factors(total, warmup, name=name, final_lr_factor=final)
    assert all(a < b for a, b in itertools.pairwise(values[: warmup + 1]))
    assert values[warmup] == pytest.approx(1)
    falling = values[warmup:]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(falling))
    assert values[-1] == pytest.approx(1 if name == "constant" else final, abs=1e-12)


def test_build_schedule_scales_every_group_and_resumes() -> None:
    config = ScheduleConfig(name="cosine", warmup_epochs=0.5)

    def rates(stop: int | None) -> list[list[float]]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 4.0})
        schedule = build_schedule(config, optimizer, total_steps=8, steps_per_epoch=4)
        seen = []
        for step in range(8):
            if step == stop:
                state = schedule.state_dict()
                schedule = build_schedule(config, optimizer, total_steps=8, steps_per_epoch=4)
                schedule.load_state_dict(state)
            else:
                seen.append(schedule.get_last_lr())
            optimizer.step()
            schedule.step()
        return seen

    whole = rates(None)
    expected = [learning_rate_factor(config, step, 8, 2) for step in range(8)]
    assert [pair[0] for pair in whole] == pytest.approx([2 * f for f in expected])
    assert [pair[1] for pair in whole] == pytest.approx([4 * f for f in expected])
    resumed = rates(5)
    assert resumed == whole[:5] + whole[6:]


def test_mistakes_are_named() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(UserError, match="warmup_epochs"):
        build_schedule(ScheduleConfig(warmup_epochs=10), optimizer, 40, 4)
    with pytest.raises(ValidationError, match="milestones"):
        ScheduleConfig(name="steps")
    with pytest.raises(ValidationError):
        ScheduleConfig(name="steps", milestones=(60, 80))
