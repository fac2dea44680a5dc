"""A temperature that finds its own level in one run."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macl.losses.temperature import Bounds, Statistics, StepInfo, Temperature, check, check_positive

SHARE, SHARE_WITHOUT_W = 0.44, 0.53
"""KL/log K at the best fixed τ of InfoNCE, whose gradient carries W, and of DCL, without it."""


class AutoTemperature(Temperature):
    """τ at which the negatives' softmax P̂ has a given concentration, as t-SNE chooses bandwidths.

        KL(P̂ ‖ uniform) = log K − H(P̂) = ρ·log K,   K negatives, means over the global batch

    Every training step gives a Newton step for log KL as a function of log τ, from the entropy and
    the variance that the pass over the negatives knows anyway:

        log τ* = log τ + log(KL/(ρ·log K))·KL/v,   v = Var_P̂(s)/τ² = dH/d log τ

    τ follows the moving average of log τ*, by at most `step` at a time, and stays within its
    bounds.

    Embeddings that all point in one direction reach the target at a τ that keeps them there, and
    those of an encoder that has not learned yet reach it at no τ. So while the mean similarity of
    all embeddings lies above `cone`, τ returns to its start value. Whether the target is met, the
    metrics say: compare `kl_share` with `kl_target`.

    Args:
        kl_share: ρ, the share of log K, between 0 and 1. Default 0.44, or 0.53 for losses without
            the factor W: what the best fixed τ of our studies had.
        temperature: τ at the start. Too high is better than too low: a high τ spreads embeddings.
        tau_min: lower bound; default a quarter of the start value.
        tau_max: upper bound; default four times the start value.
        momentum: weight of the past in the moving average.
        step: the most that log τ moves in a training step.
        cone: mean similarity above which embeddings count as not spread.
    """

    wants_statistics = True
    temperature: float
    log_temperature: Tensor
    average: Tensor
    share: Tensor
    steps: Tensor

    def __init__(
        self,
        kl_share: float = SHARE,
        *,
        temperature: float = 0.2,
        tau_min: float | None = None,
        tau_max: float | None = None,
        momentum: float = 0.8,
        step: float = 0.1,
        cone: float = 0.5,
    ) -> None:
        super().__init__()
        if not (isinstance(kl_share, int | float) and 0 < kl_share < 1):
            raise ValueError(
                f"kl_share is the share of log K at which KL(P̂ ‖ uniform) is held, above 0 and "
                f"below 1, got {kl_share!r}. Values that fit our studies: 0.4 to 0.55."
            )
        for name, value in (("momentum", momentum), ("cone", cone)):
            check(name, value, 0 <= value < 1, "lies between 0 and 1")
        check("step", step, 0 < step <= 1, "is above 0 and at most 1")
        start = check_positive("temperature", temperature)
        low = start / 4 if tau_min is None else tau_min
        high = start * 4 if tau_max is None else tau_max
        self.tau_min, self.tau_max = Bounds.checked(low, high, start)
        self.kl_share, self.temperature, self.floor = float(kl_share), start, self.tau_min
        self.momentum, self.step, self.cone = momentum, step, cone
        self.register_buffer("log_temperature", torch.tensor(math.log(start)))
        self.register_buffer("average", torch.tensor(0.0))
        self.register_buffer("steps", torch.tensor(0.0))
        self.register_buffer("share", torch.tensor(math.nan))

    def forward(self, step: StepInfo) -> Tensor:
        """τ, which the steps before have found."""
        return self.log_temperature.exp().to(step.new(0.0).dtype)

    @torch.no_grad()
    def observe(self, statistics: Statistics) -> None:
        """Move τ by what the step has shown."""
        wanted = self.kl_share * statistics.log_count
        kl = (statistics.log_count - statistics.entropy).clamp(min=1e-6)
        slope = statistics.variance / statistics.temperature.square()
        # KL ∝ τ^−2 for small KL, so that KL/v is 1/2; bounded where either is hardly known.
        inverse = (kl / slope.clamp(min=1e-12)).clamp(0.1, 1.0)
        here = statistics.temperature.log()
        estimate = here + ((kl / wanted.clamp(min=1e-6)).log() * inverse).clamp(-1.0, 1.0)
        start = math.log(self.temperature)
        in_cone = statistics.mean_similarity > self.cone
        estimate = torch.where(in_cone, estimate.clamp(min=start), estimate)
        usable = (statistics.log_count > 0) & estimate.isfinite()
        estimate = torch.where(usable, estimate, here)
        self.average.lerp_(estimate.to(self.average), 1 - self.momentum)
        self.steps += 1
        average = self.average / (1 - self.momentum**self.steps)
        moved = self.log_temperature + (average - self.log_temperature).clamp(-self.step, self.step)
        self.log_temperature.copy_(moved.clamp(math.log(self.tau_min), math.log(self.tau_max)))
        self.share.copy_(kl / statistics.log_count.clamp(min=1e-6))

    def is_floored(self, step: StepInfo) -> Tensor:
        """Whether τ lies at its lower bound."""
        return self.log_temperature <= math.log(self.tau_min) + 1e-6

    def extra_metrics(self) -> dict[str, Tensor]:
        """KL/log K of the last training step, and what it is to be."""
        return {
            "kl_share": self.share.clone(),
            "kl_target": torch.full_like(self.share, self.kl_share),
        }
