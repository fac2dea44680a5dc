"""LARS, which PyTorch lacks, the optimizers of a recipe, and schedules of the learning rate.

The rate is a pure function of the step, so that a resumed run continues exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from macl.core.errors import UserError
from macl.recipes.optim import OptimizerConfig, ScheduleConfig


class LARS(Optimizer):
    r"""Layer-wise adaptive rate scaling (You et al., 2017) in the form that SimCLR uses.

        g ← ∇w + λ w
        r ← η ‖w‖ / ‖g‖        (1 where either norm is 0, and in groups with adapt=False)
        v ← μ v + lr r g
        w ← w − v

    The learning rate enters the momentum buffer v, unlike `torch.optim.SGD`, which keeps gradients
    there: when the schedule lowers the rate, earlier gradients keep the rate of their own step.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
    ) -> None:
        if lr < 0 or weight_decay < 0 or trust_coefficient <= 0 or not 0 <= momentum < 1:
            raise ValueError(
                "LARS needs lr ≥ 0, weight_decay ≥ 0, trust_coefficient > 0 and 0 ≤ momentum < 1; "
                f"got lr={lr}, weight_decay={weight_decay}, "
                f"trust_coefficient={trust_coefficient}, momentum={momentum}"
            )
        defaults = {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient, "adapt": True,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; `closure` re-evaluates the loss first, as in every PyTorch optimizer."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            # One call of _foreach_ takes tensors that are all sharded (DTensor), or all whole.
            for kind in {type(p.grad) for p in weights}:
                self._update(group, [p for p in weights if type(p.grad) is kind])
        return loss

    def _update(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [w.grad for w in weights if w.grad is not None]
        for w in weights:
            if "momentum_buffer" not in self.state[w]:
                self.state[w]["momentum_buffer"] = torch.zeros_like(w)
        velocities = [self.state[w]["momentum_buffer"] for w in weights]

        # The _foreach_ calls update all tensors of the group in a handful of kernels.
        steps = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        if group["adapt"]:
            coefficient = group["trust_coefficient"]
            weight_norms = torch.stack(torch._foreach_norm(weights))
            gradient_norms = torch.stack(torch._foreach_norm(steps))
            defined = (weight_norms > 0) & (gradient_norms > 0)
            ratios = torch.where(defined, coefficient * weight_norms / gradient_norms, 1.0)
            torch._foreach_mul_(steps, list(ratios.unbind()))
        torch._foreach_mul_(steps, group["lr"])
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, steps)
        torch._foreach_sub_(weights, velocities)


def parameter_groups(
    module: nn.Module, weight_decay: float, least_axes: int = 2
) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices and kernels, then biases and norm layers.

    A parameter with fewer axes than two is a bias, a scale or a shift: it gets no weight decay and,
    in LARS, no adaptation (`adapt=False`, which others ignore). Empty groups are dropped.
    """
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": weight_decay, "adapt": True},
        {"params": [], "weight_decay": 0.0, "adapt": False},
    ]
    for weight in module.parameters():
        if weight.requires_grad:
            groups[weight.ndim < least_axes]["params"].append(weight)
    return [group for group in groups if group["params"]]


def layer_depths(encoder: nn.Module) -> dict[str, int]:
    """Parameter name → the number of its layer, from 0 at the input.

    A layer is a numbered block (`blocks.3`, `layer1.0`, `encoder.layer.5`), in the order of
    registration; what comes before the first block is one layer, what comes after the last another.
    """
    names = [name for name, _ in encoder.named_parameters()]
    number: dict[str, int] = {}
    depths: dict[str, int] = {}
    for name in names:
        if block := re.match(r"^(.*?\.\d+(?:\.\d+)*)\.", name):
            depths[name] = number.setdefault(block[1], len(number) + 1)
        else:
            depths[name] = len(names) if number else 0
    return {name: min(depth, len(number) + 1) for name, depth in depths.items()}


def _rated(
    groups: list[dict[str, Any]], config: OptimizerConfig, module: nn.Module, scale: float
) -> list[dict[str, Any]]:
    """The groups divided by the rate of their weights: heads, and the encoder layer by layer."""
    encoder: nn.Module = module.get_submodule("encoder")
    depths = layer_depths(encoder)
    top = max(depths.values(), default=0)
    rate = {
        weight: config.lr * config.layer_decay ** (top - depths[name])
        for name, weight in encoder.named_parameters()
    }
    heads = config.lr if config.head_lr is None else config.head_lr
    divided: dict[Any, dict[str, Any]] = {}
    for place, group in enumerate(groups):
        for weight in group["params"]:
            mine = {"encoder": weight in rate, "lr": scale * rate.get(weight, heads)}
            key = (place, *mine.values())
            divided.setdefault(key, {**group, **mine, "params": []})["params"].append(weight)
    return list(divided.values())


def build_optimizer(config: OptimizerConfig, module: nn.Module, batch_size: int) -> Optimizer:
    """The optimizer of a module's trainable parameters; `batch_size` is that of all devices."""
    asked = config.exclude_norm_and_bias
    exclude = config.name == "lars" if asked is None else asked
    # A scalar is a learned temperature or bias of the loss, which never decays.
    groups = parameter_groups(module, config.weight_decay, least_axes=2 if exclude else 1)
    lr, weight_decay = config.learning_rate(batch_size), config.weight_decay
    if config.head_lr is not None or config.layer_decay < 1:
        groups = _rated(groups, config, module, config.scale(batch_size))
    if config.name == "lars":
        return LARS(groups, lr=lr, momentum=config.momentum, weight_decay=weight_decay)
    # One pass over weights on a CPU, where torch takes a dozen; sharded ones (DTensor) have none.
    fused = all(p.is_cpu and not hasattr(p, "to_local") for p in module.parameters()) or None
    shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": fused}
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **shared)
    adam = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return adam(groups, betas=config.betas, eps=config.eps, **shared)


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

    It depends on the step and the total alone. Where a run is made longer, a cosine that had
    reached its end rises to the value that a run of the new length has at this step: after 100
    epochs, `epochs=200` continues at the middle of the longer cosine.
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


def warmup_steps(config: ScheduleConfig, total_steps: int, steps_per_epoch: int) -> int:
    """Number of warm-up steps; `UserError` where they would be the whole training."""
    steps = round(config.warmup_epochs * steps_per_epoch)
    if 0 < total_steps <= steps:
        raise UserError(
            f"A warm-up of {config.warmup_epochs:g} epochs ({steps} steps) leaves nothing of the "
            f"{total_steps} steps of training. Lower schedule.warmup_epochs or train longer."
        )
    return steps
