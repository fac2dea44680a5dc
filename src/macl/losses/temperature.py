"""Temperatures: fixed, adaptive to alignment (the paper's), cosine by step, learned, a map.

A temperature is a module that says how similarities become logits: from the batch's alignment A it
makes a scalar τ > 0, one τ per anchor, or a map g(s) in the place of s/τ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from macl.losses.context import TrainingContext
from macl.losses.kernels.interface import LogitMap
from macl.losses.logits import Logits


def check_positive(name: str, value: float) -> float:
    """`value` as a float, if it can serve as a temperature."""
    # Within these bounds τ and 1/τ, and what the losses make of them, stay in float32's range.
    if not 1e-30 <= value <= 1e30:
        raise ValueError(
            f"{name} must be a positive number (1e-30 to 1e30), got {value}. Typical values: 0.05 "
            "to 0.5."
        )
    return float(value)


class Temperature(nn.Module):
    """Base: `forward(alignment)` gives τ as a tensor like `alignment`, scalar or one per anchor.

    Anchors are ordered as in `Contrast.margin`: (2N,) for both views and for symmetric "cross",
    (N,) for one direction and for a bank.
    """

    adapts: bool = True
    """Whether τ depends on the alignment; where it does not, none need be computed."""
    temperature: float | None = None
    """The τ or τ₀ that a user sets; None where there is no such setting."""
    floor: float | None = None
    """Lower bound of τ; None where it has none."""

    def forward(self, alignment: Tensor) -> Logits:
        """Scalar A in [−1, 1], detached → τ > 0, a scalar or (n,), or a map."""
        raise NotImplementedError

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""

    def advance(self, step: int | None = None) -> None:
        """Called after every optimiser step with the number of steps taken so far."""

    def is_floored(self, alignment: Tensor) -> Tensor:
        """Whether a lower bound was acting at this alignment (a scalar bool)."""
        return torch.zeros((), dtype=torch.bool, device=alignment.device)

    def alignment_range(self) -> tuple[float, float] | None:
        """τ at A = −1 and at A = 1 without its floor; None where τ does not follow A."""
        return None

    def settings_above_floor(self, lowest: float) -> dict[str, float]:
        """Settings, each of which alone keeps τ above its floor from A = `lowest` on."""
        return {}

    def settings_to_rise(self, alignment: float) -> str:
        """Which setting other than τ₀ raises τ at this alignment; empty where there is none."""
        return ""


class Fixed(Temperature):
    """The same τ always."""

    adapts = False
    temperature: float

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def forward(self, alignment: Tensor) -> Tensor:
        """τ."""
        return torch.full_like(alignment, self.temperature)

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return f"{self.temperature:g}"


class Mapped(Temperature):
    """A similarity map g(s), such as `kernels.InverseTanh`, where others have s/τ."""

    adapts = False

    def __init__(self, map: LogitMap) -> None:
        super().__init__()
        self.map = map

    def forward(self, alignment: Tensor) -> LogitMap:
        """g."""
        return self.map

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return repr(self.map)


class AlignmentAdaptive(Temperature):
    """The paper's Eq. 7: τ_a = max(τ₀·[1 + α·(A − A₀)], floor).

    Args:
        temperature: τ₀, the value at A = A₀.
        alpha: α ≥ 0. The paper states [0, 1] but its own sentence setting is α = 2.
        threshold: A₀ in [−1, 1].
        floor: lower bound of τ_a, as α > 1 can drive the formula to zero and below (the sentence
            setting does once A ≤ 0.3). Default τ₀/10.
    """

    temperature: float
    floor: float

    def __init__(
        self,
        temperature: float = 0.1,
        alpha: float = 0.5,
        threshold: float = 0.0,
        floor: float | None = None,
    ) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(
                f"alpha must be 0 or more, got {alpha}. 0 fixes the temperature; the paper uses "
                "0.5 for images and graphs, 2 for sentences."
            )
        if not -1 <= threshold <= 1:
            raise ValueError(
                f"threshold (A0) is a cosine similarity between -1 and 1, got {threshold}."
            )
        self.alpha, self.threshold = float(alpha), float(threshold)
        self.floor = check_positive("floor", self.temperature / 10 if floor is None else floor)
        if self.floor > self.temperature:
            raise ValueError(
                f"floor {self.floor:g} lies above the temperature {self.temperature:g} that it "
                "bounds from below; lower it or leave it out (default: a tenth)."
            )

    def forward(self, alignment: Tensor) -> Tensor:
        """τ_a."""
        return self._unbounded(alignment).clamp(min=self.floor)

    def at(self, alignment: float) -> float:
        """τ_a of a number."""
        rise = self.alpha * (alignment - self.threshold)
        return max(self.temperature * (1 + rise), self.floor)

    def is_floored(self, alignment: Tensor) -> Tensor:
        """Whether the floor acts."""
        return self._unbounded(alignment) < self.floor

    def alignment_range(self) -> tuple[float, float] | None:
        """τ at A = −1 and at A = 1; None for α = 0, a fixed τ."""
        if self.alpha == 0:
            return None
        low, high = (
            self.temperature * (1 + self.alpha * (end - self.threshold)) for end in (-1, 1)
        )
        return low, high

    def settings_above_floor(self, lowest: float) -> dict[str, float]:
        """α or A₀ for which τ_a ≥ floor at A = `lowest`, rounded down to two digits."""
        reach = 1 - self.floor / self.temperature
        return {
            "alpha": math.floor(100 * reach / (self.threshold - lowest)) / 100,
            "threshold": math.floor(100 * (lowest + reach / self.alpha)) / 100,
        }

    def settings_to_rise(self, alignment: float) -> str:
        """α where A lies above A₀, else A₀."""
        if self.alpha == 0:
            return ""
        if alignment > self.threshold:
            return "raise loss.alpha, as A lies above A0"
        return f"lower loss.threshold (A0) below A = {alignment:.2f}, from where τ rises"

    def _unbounded(self, alignment: Tensor) -> Tensor:
        alignment, slope = alignment.detach(), self.temperature * self.alpha
        at_zero = self.temperature - slope * self.threshold
        if torch.compiler.is_compiling():  # inductor takes no symbol for `alpha`; it fuses the two
            return alignment * slope + at_zero
        return torch.rsub(alignment, at_zero, alpha=-slope)  # one launch: at_zero + slope·A

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return (
            f"{self.temperature:g}, alpha={self.alpha:g}, threshold={self.threshold:g}, "
            f"floor={self.floor:g}"
        )


class CosineSchedule(Temperature):
    """τ alternates between two values with the training step (Kukleva et al., ICLR 2023).

    τ(t) = lowest + (highest − lowest)·(1 + cos(2πt/period))/2. In a loop of your own, call
    `advance()` once per optimiser step. The step is a buffer, so checkpoints keep it.

    Args:
        lowest: τ at half the period.
        highest: τ at t = 0.
        period: steps from one highest τ to the next; epochs with `per_epoch`.
        per_epoch: as published: t is the epoch, counted from 1, and τ is constant within it. The
            paper's period is 400 epochs. `setup` sets the steps per epoch; without it, call
            `advance()` once per epoch.
    """

    adapts = False
    step: Tensor

    def __init__(
        self,
        lowest: float = 0.1,
        highest: float = 1.0,
        period: int = 1000,
        *,
        per_epoch: bool = False,
    ) -> None:
        super().__init__()
        self.lowest, self.highest = (
            check_positive("lowest", lowest),
            check_positive("highest", highest),
        )
        if self.highest < self.lowest:
            raise ValueError(f"highest ({highest}) is below lowest ({lowest}); swap them.")
        if period < 1:
            raise ValueError(f"period counts optimiser steps and must be 1 or more, got {period}.")
        self.period, self.per_epoch, self.steps_per_epoch = int(period), per_epoch, 1
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def setup(self, context: TrainingContext) -> None:
        """Take the length of an epoch."""
        self.steps_per_epoch = context.steps_per_epoch

    def advance(self, step: int | None = None) -> None:
        """Set the number of optimiser steps taken to `step`; without it, one more than before."""
        if step is None:
            self.step += 1
        else:
            self.step.fill_(step)

    def forward(self, alignment: Tensor) -> Tensor:
        """τ(t)."""
        t = self.step // self.steps_per_epoch + 1 if self.per_epoch else self.step
        phase = torch.cos(t.to(alignment) * (2 * math.pi / self.period))
        return self.lowest + (self.highest - self.lowest) * (1 + phase) / 2

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        unit = " epochs" if self.per_epoch else ""
        return f"{self.lowest:g}..{self.highest:g}, period={self.period}{unit}"


class LearnedTemperature(Temperature):
    """τ = exp(θ), trained with the model as in CLIP and kept within bounds.

    Pass the criterion's parameters to the optimiser as well. The bound is put on the parameter
    itself, so τ can always come back from it.
    """

    adapts = False

    def __init__(
        self, temperature: float = 0.07, lowest: float = 0.01, highest: float = 1.0
    ) -> None:
        super().__init__()
        self.lowest, self.highest = (
            check_positive("lowest", lowest),
            check_positive("highest", highest),
        )
        if not self.lowest <= check_positive("temperature", temperature) <= self.highest:
            raise ValueError(
                f"the initial temperature {temperature} must lie between lowest ({lowest}) and "
                f"highest ({highest})."
            )
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, alignment: Tensor) -> Tensor:
        """exp(θ), with gradient."""
        with torch.no_grad():
            self.log_temperature.clamp_(math.log(self.lowest), math.log(self.highest))
        return self.log_temperature.exp().to(alignment.dtype)

    def is_floored(self, alignment: Tensor) -> Tensor:
        """Whether τ lies at its lower bound."""
        return self.log_temperature.detach() <= math.log(self.lowest)

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return f"{self.log_temperature.exp().item():g} in {self.lowest:g}..{self.highest:g}"


Cosine, Learned = CosineSchedule, LearnedTemperature
