"""The learning rate as a pure function of the step, so that a resumed run continues exactly."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from macl.core.errors import UserError
from macl.recipes.optim import ScheduleConfig


def learning_rate_factor(
    config: ScheduleConfig, step: int, total_steps: int, warmup_steps: int
) -> float:
    """The factor on the peak learning rate at `step` = 0, 1, …, `total_steps` − 1.

    Warm-up rises as (step + 1) / (warmup_steps + 1): never 0, and 1 exactly at step `warmup_steps`.
    From there p = (step − warmup_steps) / (total_steps − warmup_steps) runs from 0 to 1:

        cosine    f + (1 − f) (1 + cos πp) / 2, where f is `final_lr_factor`
        linear    1 − (1 − f) p
        constant  1
        steps     gamma ^ (number of milestones passed)
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    final = config.final_lr_factor
    if config.name == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    if config.name == "linear":
        return 1 - (1 - final) * progress
    if config.name == "steps":
        return config.gamma ** sum(step >= round(m * total_steps) for m in config.milestones)
    return 1.0


def build_schedule(
    config: ScheduleConfig, optimizer: Optimizer, total_steps: int, steps_per_epoch: int
) -> LambdaLR:
    """A scheduler to be stepped after every optimizer step.

    It depends on the step and the total alone. Where a run is made longer, the curve is computed
    anew for the new total: a cosine that had reached its end rises to the value that a run of the
    new length has at this step, and goes down from there.
    """
    warmup = warmup_steps(config, total_steps, steps_per_epoch)
    waiting = round(config.head_epochs * steps_per_epoch)

    def factor(step: int) -> float:
        return learning_rate_factor(config, step, total_steps, warmup)

    def after_heads(step: int) -> float:
        return factor(step) if step >= waiting else 0.0

    waits = [group.get("encoder", False) for group in optimizer.param_groups]
    if waiting and not any(waits):
        raise UserError("schedule.head_epochs needs optimizer.head_lr, the rate of the heads.")
    return LambdaLR(optimizer, [after_heads if each else factor for each in waits])


def current_rates(scheduler: LambdaLR) -> list[float]:
    """The learning rate of each parameter group at the step where `scheduler` is."""
    step = scheduler.last_epoch
    return [
        float(base) * factor(step)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]


def warmup_steps(config: ScheduleConfig, total_steps: int, steps_per_epoch: int) -> int:
    """Number of warm-up steps; `UserError` where they would be the whole training."""
    steps = round(config.warmup_epochs * steps_per_epoch)
    if 0 < total_steps <= steps:
        raise UserError(
            f"A warm-up of {config.warmup_epochs:g} epochs ({steps} steps) leaves nothing of the "
            f"{total_steps} steps of training. Lower schedule.warmup_epochs or train longer."
        )
    return steps
