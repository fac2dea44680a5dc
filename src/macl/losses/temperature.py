"""Temperatures: fixed, adaptive to alignment (the paper's), cosine by step, learned, a map.

A temperature is a module that says how similarities become logits. From what a step knows it makes
a scalar τ > 0, one τ per anchor, or a map g(s) in place of s/τ, and it may keep state.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses.ops.maps import LogitMap, Logits
from macl.losses.ops.tiled import Values
from macl.losses.pairs import Pairs, lazy

Init = TypeVar("Init", bound=Callable[..., None])


def check_positive(name: str, value: float) -> float:
    """`value` as a float, if it can serve as a temperature."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is a number, got {value!r} ({type(value).__name__}).")
    # Within these bounds τ and 1/τ, and what the losses make of them, stay in float32's range.
    if not 1e-30 <= value <= 1e30:
        raise ValueError(
            f"{name} must be a positive number (1e-30 to 1e30), got {value}. Typical values: 0.05 "
            "to 0.5."
        )
    return float(value)


def check(name: str, value: float, holds: bool, rule: str, hint: str = "") -> float:
    """`value` as a float if the rule holds; else a ValueError that states it."""
    if not holds:
        raise ValueError(f"{name} {rule}, got {value}. {hint}".rstrip())
    return float(value)


def renamed(**names: str) -> Callable[[Init], Init]:
    """Lets a constructor take arguments by their names of version 0.2, with a warning."""

    def decorate(init: Init) -> Init:
        @functools.wraps(init)
        def accepting(self: Any, *args: Any, **given: Any) -> None:
            for old in names.keys() & given.keys():
                message = f"{type(self).__name__}({old}=…) is now {names[old]}=…"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                given[names[old]] = given.pop(old)
            init(self, *args, **given)

        return accepting  # type: ignore[return-value]

    return decorate


class Bounds(NamedTuple):
    """The bounds of τ."""

    tau_min: float
    tau_max: float

    @classmethod
    def checked(cls, tau_min: float, tau_max: float, start: float | None = None) -> Bounds:
        """The bounds, if they are in order and the first τ lies within them."""
        low, high = check_positive("tau_min", tau_min), check_positive("tau_max", tau_max)
        if high < low:
            raise ValueError(f"tau_max ({tau_max}) is below tau_min ({tau_min}); swap them.")
        if start is not None and not low <= check_positive("temperature", start) <= high:
            raise ValueError(
                f"the start temperature {start} must lie between tau_min ({tau_min}) and "
                f"tau_max ({tau_max})."
            )
        return cls(low, high)

    def clamp(self, tau: Tensor) -> Tensor:
        """τ within the bounds."""
        return tau.clamp(self.tau_min, self.tau_max)

    def lower(self, tau: Tensor) -> Tensor:
        """Which τ lie at the lower bound, to float32's precision."""
        return tau <= self.tau_min * (1 + 1e-6)

    def either(self, tau: Tensor) -> Tensor:
        """Which τ lie at either bound."""
        return self.lower(tau) | (tau >= self.tau_max * (1 - 1e-6))


@dataclass(frozen=True)
class TrainingContext:
    """The size of a training, given once before its first step.

    A loss with state per sample takes its size from `samples`; a schedule takes its length from
    `steps_per_epoch` and `epochs`. Steps are optimizer steps, as in `Temperature.advance`.
    """

    samples: int
    """Samples in the training data; 0 for a stream, where it is not known."""
    batch_size: int
    """Samples per optimizer step, over all processes."""
    steps_per_epoch: int
    """Optimizer steps in an epoch."""
    epochs: int
    labels: Tensor | None = field(default=None, compare=False, repr=False)
    """(samples,) integer classes of the training data, for losses with `takes_labels`."""
    guide: Tensor | None = field(default=None, compare=False, repr=False)
    """(samples, G) embeddings of the training data by a guide model."""
    most_steps: int | None = None
    """Optimizer steps after which training ends in the middle of its last epoch."""

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        whole = self.steps_per_epoch * self.epochs
        return whole if self.most_steps is None else min(whole, self.most_steps)


class StepInfo:
    """What a step knows before its similarities are computed; each part is computed when read.

    Args:
        pairs: who is contrasted.
        indices: (N,) positions of the samples in the data set, where the caller gives them.
        number: optimizer steps taken so far, as `advance` has stated it.
    """

    def __init__(self, pairs: Pairs, indices: Tensor | None = None, number: int = 0) -> None:
        self._pairs, self.indices, self.number = pairs, indices, number

    @lazy
    def alignment(self) -> Tensor:
        """Scalar A in [−1, 1], the mean positive similarity of all ranks, detached."""
        return distributed.global_mean(self._pairs.positive)

    @property
    def positive(self) -> Tensor:
        """(n,) similarity of each anchor of this rank to its positive, detached."""
        return self._pairs.positive

    @property
    def rows(self) -> Tensor:
        """(n, D) the anchors' embeddings at length 1, detached."""
        return self._pairs.rows.detach()

    @property
    def anchors(self) -> int:
        """n, the number of anchors of this rank: 2N for both views and both directions, else N."""
        return self._pairs.anchors

    def new(self, value: float) -> Tensor:
        """Scalar `value` in the type of the embeddings, on their device."""
        return self._pairs.like.new_full((), value)


@dataclass(frozen=True)
class Statistics:
    """What a step knows of its negatives afterwards: means over the anchors of all ranks."""

    entropy: Tensor
    """Scalar H̄(P̂), in nats, P̂ the softmax over an anchor's negatives."""
    variance: Tensor
    """Scalar mean variance of the similarities under P̂."""
    log_count: Tensor
    """Scalar mean log K."""
    temperature: Tensor
    """Scalar mean τ of the step."""
    mean_similarity: Tensor
    """Scalar mean similarity of all anchors with each other; NaN where they are not known."""

    @classmethod
    def of(
        cls, values: Values, temperature: Tensor, log_count: Tensor, rows: Tensor | None
    ) -> Statistics:
        """From the moments of the operator, with one exchange between ranks.

        `temperature` is a scalar or (n,), `log_count` (n,) log K, `rows` the (n, D) unit anchors.
        """
        assert values.mean is not None
        assert values.square is not None
        with torch.no_grad():
            counted = values.lse > -math.inf
            entropy = torch.where(counted, values.lse - values.mean, 0.0)
            variance = (values.square - values.mean.square()).clamp(min=0) * temperature.square()
            parts = (entropy, torch.where(counted, variance, 0.0), log_count, temperature)
            sums = [x.expand_as(entropy).masked_fill(~counted, 0.0).sum() for x in parts]
            numbers = torch.stack([*sums, counted.sum().to(entropy.dtype)])
            direction = numbers.new_empty(0) if rows is None else rows.detach().to(numbers).sum(0)
            anchors = numbers.new_full((1,), float(values.lse.shape[0]))
            total = distributed.global_sum(torch.cat([numbers, anchors, direction]))
            means = total[: len(sums)] / total[len(sums)].clamp(min=1)
            mean = total[len(sums) + 2 :] / total[len(sums) + 1]
            similarity = mean.square().sum() if rows is not None else mean.new_full((), math.nan)
            return cls(*means.unbind(), similarity)  # type: ignore[call-arg]


class Temperature(nn.Module):
    """Base: `forward(step)` gives τ as a tensor, a scalar or one per anchor, or a map.

    Anchors are ordered as in `LossOutput.margin`: (2N,) for both views and for symmetric "cross",
    (N,) for one direction and for a bank.

    A rule of your own, with a higher τ for positives that are far apart:

        class ByDifficulty(Temperature):
            def forward(self, step):
                return 0.1 + 0.05 * (1 - step.positive)
    """

    temperature: float | None = None
    """The τ or τ₀ that a user sets; None where there is no such setting."""
    floor: float | None = None
    """Lower bound of τ; None where it has none."""
    wants_statistics: bool = False
    """Whether `observe` is to be called, with statistics from the pass that is made anyway."""

    def forward(self, step: StepInfo) -> Logits:
        """τ > 0, a scalar or (n,), or a map."""
        raise NotImplementedError

    def observe(self, statistics: Statistics) -> None:
        """Called after each training step where `wants_statistics`; without autograd."""

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""

    def advance(self, step: int | None = None) -> None:
        """Called after every optimizer step with the number of steps taken so far."""

    def is_floored(self, step: StepInfo) -> Tensor:
        """Whether a lower bound was acting in this step (a scalar bool)."""
        return step.new(0.0).bool()

    def extra_metrics(self) -> dict[str, Tensor]:
        """Detached scalars to log beside τ, by name."""
        return {}

    def extra_repr(self) -> str:
        """Shown by print(module): its settings."""
        plain = (int, float, LogitMap)
        shown = ((k, v) for k, v in vars(self).items() if k[0] != "_" and isinstance(v, plain))
        return ", ".join(f"{name}={value}" for name, value in shown if name != "training")

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

    temperature: float

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def forward(self, step: StepInfo) -> Tensor:
        """τ."""
        return step.new(self.temperature)


class Mapped(Temperature):
    """A similarity map g(s), such as `kernels.InverseTanh`, where others have s/τ."""

    def __init__(self, map: LogitMap) -> None:
        super().__init__()
        self.map = map

    def forward(self, step: StepInfo) -> LogitMap:
        """g."""
        return self.map


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
        hint = "0 fixes the temperature; the paper uses 0.5 for images and graphs, 2 for sentences."
        self.alpha = check("alpha", alpha, 0 <= alpha < math.inf, "must be 0 or more", hint)
        rule = "(A0) is a cosine similarity between -1 and 1"
        self.threshold = check("threshold", threshold, -1 <= threshold <= 1, rule)
        self.floor = check_positive("floor", self.temperature / 10 if floor is None else floor)
        if self.floor > self.temperature:
            raise ValueError(
                f"floor {self.floor:g} lies above the temperature {self.temperature:g} that it "
                "bounds from below; lower it or leave it out (default: a tenth)."
            )

    def forward(self, step: StepInfo) -> Tensor:
        """τ_a."""
        return self.at(step.alignment)

    def at(self, alignment: Tensor) -> Tensor:
        """τ_a at an alignment A, of any shape."""
        return self._unbounded(alignment).clamp(min=self.floor)

    def is_floored(self, step: StepInfo) -> Tensor:
        """Whether the floor acts."""
        return self._unbounded(step.alignment) < self.floor

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
        slope = self.temperature * self.alpha
        return alignment.detach() * slope + (self.temperature - slope * self.threshold)


class CosineSchedule(Temperature):
    """τ alternates between two values with the training step (Kukleva et al., ICLR 2023).

    τ(t) = tau_min + (tau_max − tau_min)·(1 + cos(2πt/period))/2. In a loop of your own, call
    `advance()` once per optimizer step. The step is a buffer, so checkpoints keep it.

    Args:
        tau_min: τ at half the period.
        tau_max: τ at t = 0.
        period: steps from one maximum of τ to the next; epochs with `per_epoch`.
        per_epoch: as published: t is the epoch, counted from 1, and τ is constant within it. The
            paper's period is 400 epochs. `setup` sets the steps per epoch; without it, call
            `advance()` once per epoch.
    """

    step: Tensor

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self,
        tau_min: float = 0.1,
        tau_max: float = 1.0,
        period: int = 1000,
        *,
        per_epoch: bool = False,
    ) -> None:
        super().__init__()
        self.tau_min, self.tau_max = Bounds.checked(tau_min, tau_max)
        check("period", period, period >= 1, "counts optimizer steps and must be 1 or more")
        self.period, self.per_epoch, self.steps_per_epoch = int(period), per_epoch, 1
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def setup(self, context: TrainingContext) -> None:
        """Take the length of an epoch."""
        self.steps_per_epoch = context.steps_per_epoch

    def advance(self, step: int | None = None) -> None:
        """Set the number of optimizer steps taken to `step`; without it, one more than before."""
        if step is None:
            self.step += 1
        else:
            self.step.fill_(step)

    def forward(self, step: StepInfo) -> Tensor:
        """τ(t)."""
        t = self.step // self.steps_per_epoch + 1 if self.per_epoch else self.step
        phase = torch.cos(t.to(step.new(0.0)) * (2 * math.pi / self.period))
        return self.tau_min + (self.tau_max - self.tau_min) * (1 + phase) / 2


class LearnedTemperature(Temperature):
    """τ = exp(θ), trained with the model as in CLIP and kept within bounds.

    Pass the criterion's parameters to the optimizer as well. The bound is put on the parameter
    itself, so τ can always come back from it.
    """

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self, temperature: float = 0.07, tau_min: float = 0.01, tau_max: float = 1.0
    ) -> None:
        super().__init__()
        self.tau_min, self.tau_max = Bounds.checked(tau_min, tau_max, temperature)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, step: StepInfo) -> Tensor:
        """exp(θ), with gradient."""
        with torch.no_grad():
            self.log_temperature.clamp_(math.log(self.tau_min), math.log(self.tau_max))
        return self.log_temperature.exp().to(step.new(0.0).dtype)

    def is_floored(self, step: StepInfo) -> Tensor:
        """Whether τ lies at its lower bound."""
        return self.log_temperature.detach() <= math.log(self.tau_min)


def as_temperature(
    temperature: float | str | Temperature | LogitMap, carries_w: bool = True
) -> Temperature:
    """A number, a map, "auto" or a module as a `Temperature`.

    "auto" depends on whether the gradient of the loss carries the factor W.
    """
    if temperature == "auto":
        from macl.losses.auto import SHARE, SHARE_WITHOUT_W, AutoTemperature

        return AutoTemperature(SHARE if carries_w else SHARE_WITHOUT_W)
    if isinstance(temperature, Temperature):
        return temperature
    if isinstance(temperature, LogitMap):
        return Mapped(temperature)
    if isinstance(temperature, str):
        raise ValueError(
            f'temperature is a number, "auto" or a Temperature, got {temperature!r}; write 0.1, '
            "not '0.1'."
        )
    return Fixed(temperature)
