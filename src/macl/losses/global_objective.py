"""Losses of the whole data set: moving averages u_i of each sample's negatives.

With K negatives, g = (1/K)·Σ_j exp(s_j/τ) of the batch estimates the mean over the data set. Its
logarithm is biased, so a moving average u_i of g takes its place (Yuan et al. 2022):

    log u ← logaddexp(log(1−γ) + log u, log γ + log g),   u = g at a sample's first visit
    gradient:  (g/u)·τ·∇(log g) − ∇s⁺       value:  τ·log u − s⁺

Where the views are two modalities ("cross") the positive is part of g, exp((s_j − s⁺)/τ), and the
gradient is (g/u)·τ·∇x. g/u ≤ 1/γ, so nothing overflows. A *slot* is one number that is kept: sample
`indices[i]`, on a side where the views are modalities of their own ("cross" in both directions).
"""

from __future__ import annotations

import math
import warnings
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses.base import ContrastiveLoss, PairOptions
from macl.losses.build import Inputs
from macl.losses.objectives import with_slopes
from macl.losses.ops.maps import Logits
from macl.losses.ops.tiled import Values
from macl.losses.output import ConfigWarning, LossBehavior, Terms
from macl.losses.pairs import Pairs
from macl.losses.temperature import Bounds, StepInfo, Temperature, TrainingContext, check

AT_BOUND = 0.5
"""Above this share of anchors at a bound of τ, most temperatures are set by it."""


class GlobalObjective(ContrastiveLoss):
    """Base of the losses with a moving average per sample.

    State changes in training mode only, once per call, after the loss was computed; it is the same
    on every rank. A sample that occurs more than once in a batch counts with the mean.

    Args:
        temperature: τ or the module that gives it.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch.
        state: further numbers per sample and their start.
        options: as `ContrastiveLoss`.
    """

    takes_indices: ClassVar[bool] = True
    scales_with_temperature: ClassVar[bool] = True
    has_factor: bool = True
    """Whether F is τ·(log u + ρ), not log u."""
    moves_temperature: bool = False
    """Whether each sample has a τ, which moves by `_next_state`."""
    clip: float = math.inf
    """Bound of |∂F/∂τ_i| where τ_i moves."""
    rho: float = 0.0
    """ρ, the price of a high temperature where τ is optimized."""
    epsilon: float = 0.0
    """ε added to u. In logarithms nothing needs it."""
    bounds: Bounds | None = None
    """The bounds of τ; None where it has none."""

    shows_statistics = False

    def __init__(
        self,
        temperature: float | str | Temperature,
        size: int | None,
        gamma: float,
        state: dict[str, float],
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(temperature, **options)
        name = type(self).__name__
        if size is not None and not (isinstance(size, int) and size >= 1):
            raise ValueError(
                f"size is the number of samples in the data set, 1 or more, got {size!r}: use "
                f"{name}(size=len(dataset))."
            )
        rule = "is the weight of the new batch in the moving average, above 0 and at most 1"
        hint = "Published values: 0.2 to 0.9; 1 keeps no average."
        self.gamma = check("gamma", gamma, 0 < gamma <= 1, rule, hint)
        self.paired = self.negatives == "cross"
        sides = 2 if self.paired and self.symmetric else 1
        self.state = SampleState(size or 0, sides, log_u=-math.inf, **state)
        self._compared = False

    def setup(self, context: TrainingContext) -> None:
        """Take the number of samples, or compare it with the given one."""
        super().setup(context)
        if self.state.size == 0:
            self.state.resize(context.samples)
        elif self.state.size != context.samples:
            raise ValueError(
                f"the loss was built for size={self.state.size} samples and the data set has "
                f"{context.samples}: set size={context.samples}, or leave it out."
            )

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """τ·(x − log K), the loss of samples that are seen for the first time."""
        assert isinstance(logits, Tensor)
        value = logits * (values.margin - pairs.log_count())
        return value.masked_fill(pairs.count == 0, 0.0)

    def _log_gammas(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """log γ and log(1 − γ)."""
        rest = 1 - self.gamma
        return math.log(self.gamma), math.log(rest) if rest > 0 else -math.inf

    def _next_state(self, old: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        """The numbers beside log u after a batch, from ∂F/∂τ within `clip`; τ without bounds."""
        raise NotImplementedError

    def config_warnings(self, behavior: LossBehavior) -> list[ConfigWarning]:
        """ρ that is not below log K; most of the temperatures at a bound."""
        if self.bounds is None or not behavior.negatives.any():
            return []
        low = self.bounds.lower(behavior.temperature).double().mean().item()
        either = self.bounds.either(behavior.temperature).double().mean().item()
        log_k = math.log(behavior.negatives.median().item())
        evidence = {"rho": self.rho, "log_k": log_k, "at_tau_min": low, "at_bound": either}
        if self.rho > 0 and self.rho >= log_k:
            return [
                ConfigWarning(
                    f"ρ = {self.rho:g} is not below log K = {log_k:.2f}, which drives every τ to "
                    f"its lower bound; {low:.0%} of the anchors are there",
                    f"Lower loss.rho below {log_k:.2f}, or contrast with more negatives.",
                    "∂F/∂τ = ρ − KL(P̂ ‖ uniform) at u = g, and KL is at most log K.",
                    evidence,
                )
            ]
        if either > AT_BOUND:
            return [
                ConfigWarning(
                    f"τ is at one of its bounds for {either:.0%} of the anchors",
                    "Change loss.tau_min and loss.tau_max, or loss.rho: a higher ρ lowers τ.",
                    "There the bound, and not the sample, sets the temperature.",
                    evidence,
                )
            ]
        return []

    def terms(self, pairs: Pairs, step: StepInfo, inputs: Inputs) -> Terms:
        """See `ContrastiveLoss.terms`; in training mode the state moves, after the loss.

        The embeddings get τ·(g/u)·∇log g, and a τ that needs a gradient
        G = log u + ρ − (g/u)·Σ_j P̂_j·l_j, whose last part comes through log g(τ).
        """
        slots = self.state.slots(self._indices(inputs), pairs.anchors)
        tau = self.temperature(step)
        assert isinstance(tau, Tensor)
        self._warn_of_rho(pairs, inputs)
        moves = self.training and self.moves_temperature
        values = pairs.evaluate(tau, statistics=moves)
        positive = values.positive
        assert positive is not None
        inner, used = values.lse - positive if self.paired else values.lse, tau.detach()
        with torch.no_grad():
            counted = None if pairs.complete else (pairs.count > 0).to(inner.dtype)
            log_g = inner - pairs.log_count()
            if counted is not None:
                log_g = log_g.masked_fill(counted == 0, 0.0)
            log_u = self._moved(slots, log_g)
            raised = log_u
            if self.epsilon > 0:
                raised = torch.logaddexp(log_u, torch.full_like(log_u, math.log(self.epsilon)))
            price, ratio = raised + self.rho if self.rho else raised, torch.exp(log_g - raised)
            value, slope = (price * used, ratio * used) if self.has_factor else (price, ratio)
            slopes = [(inner, slope)]
            if not self.paired:  # −s⁺ = −τ·l⁺
                value = torch.addcmul(value, used, positive, value=-1)
                slopes.append((positive, -used))
        if tau.requires_grad and self.has_factor:
            slopes.append((tau.expand_as(price), price))
        per_anchor = with_slopes(value, *slopes)
        if counted is not None:
            per_anchor = per_anchor * counted
        if self.training:
            with torch.no_grad():
                visits = Visits(slots, counted)
                new = visits.log_mean_exp(log_u)
                old = self.state.read("log_u", visits.slots, new)
                self.state.write("log_u", visits.slots, torch.where(new.isfinite(), new, old))
                if moves:
                    assert values.mean is not None
                    mean = values.mean - positive if self.paired else values.mean
                    self._move_temperatures(visits, torch.addcmul(price, ratio, mean, value=-1))
        bounds = self.bounds
        extra = {"log_u": lambda: raised.mean(), "negative_ratio": lambda: ratio.mean()}
        if bounds is not None:
            extra["at_bound"] = lambda: bounds.either(used).to(ratio.dtype).mean()
        return Terms(
            tau,
            per_anchor,
            lambda: inner if self.paired else inner - positive,
            floored=None if bounds is None else lambda: bounds.lower(used).any(),
            extra_metrics=extra,
        )

    def _moved(self, slots: Tensor, log_g: Tensor) -> Tensor:
        """(n,) log u of each anchor after this batch; log g at a sample's first visit."""
        before = self.state.read("log_u", slots, log_g)
        log_new, log_old = self._log_gammas(log_g)
        moved = torch.logaddexp(before + log_old, log_g + log_new)
        return torch.where(before > -math.inf, moved, log_g)

    def _move_temperatures(self, visits: Visits, gradient: Tensor) -> None:
        """By the mean over each slot's anchors of G, (n,) in `gradient`."""
        assert self.bounds is not None
        gradient = visits.mean(gradient)
        names = [name for name, _ in self.state.named_buffers() if name != "log_u"]
        old = {name: self.state.read(name, visits.slots, gradient) for name in names}
        new = self._next_state(old, gradient.clamp(-self.clip, self.clip))
        new["tau"] = self.bounds.clamp(new["tau"])
        for name in names:
            self.state.write(name, visits.slots, new[name].where(visits.valid, old[name]))

    def _warn_of_rho(self, pairs: Pairs, inputs: Inputs) -> None:
        """Warn once, by the first batch: a short last batch must not trigger it."""
        if self._compared or self.rho == 0 or not self.checks(inputs.z1):
            return
        self._compared = True
        most = float(pairs.count.max())
        if most > 0 and self.rho >= math.log(most):
            warnings.warn(
                f"rho = {self.rho:g} is not below log K = {math.log(most):.2f} of the batch's "
                f"K = {most:.0f} negatives, so every temperature falls to its lower bound. Lower "
                "rho, or use a larger batch.",
                stacklevel=2,
            )

    def _indices(self, inputs: Inputs) -> Tensor:
        """(N,) positions, checked."""
        name, indices, n = type(self).__name__, inputs.indices, len(inputs.z1)
        if indices is None:
            raise ValueError(
                f"{name} keeps state per sample: pass indices=(N,), the positions of the batch's "
                "samples in the data set."
            )
        if indices.shape != (n,) or indices.is_floating_point() or indices.dtype == torch.bool:
            raise ValueError(
                f"indices holds one integer per pair, ({n},), got {indices.dtype} "
                f"{tuple(indices.shape)}."
            )
        if self.state.size == 0:
            raise ValueError(
                f"{name} does not know the size of the data set: use {name}(size=len(dataset)), or "
                "call setup(context) before training."
            )
        if self.checks(indices):
            least, most = int(indices.min()), int(indices.max())
            if least < 0 or most >= self.state.size:
                raise ValueError(
                    f"indices go from {least} to {most}, outside the data set of "
                    f"{self.state.size} samples (0 to {self.state.size - 1}): use positions in the "
                    f"data set, or a larger size."
                )
        return indices.to(device=inputs.z1.device, dtype=torch.int64)


class StoredTemperature(Temperature):
    """τ_i of each sample, read from the buffer `tau` of a loss at the batch's `indices`."""

    def __init__(self, state: SampleState) -> None:
        super().__init__()
        self._state = (state,)  # in a tuple: it is the loss' submodule, not this one's

    def forward(self, step: StepInfo) -> Tensor:
        """(n,) τ_i."""
        (state,) = self._state
        assert step.indices is not None
        indices = step.indices.to(step.positive.device, torch.int64)
        return state.read("tau", state.slots(indices, step.anchors), step.new(0.0))


def check_rho(rho: float) -> float:
    """ρ, if it is 0 or more."""
    hint = (
        "Published values: 0.4 for small batches, 6 to 16 for large ones; it must lie below log K "
        "of K negatives."
    )
    rule = "is the price of a high temperature, 0 or more"
    return check("rho", rho, 0 <= rho < math.inf, rule, hint)


class SampleState(nn.Module):
    """Buffers (sides, size), one number per side and sample, with the value that each starts from.

    `size` is 0 until `resize`; `sides` is 2 where the two views have numbers of their own.
    """

    def __init__(self, size: int, sides: int, **start: float) -> None:
        super().__init__()
        self.sides, self._start = sides, start
        for name, value in start.items():
            self.register_buffer(name, torch.full((sides, size), value))

    @property
    def size(self) -> int:
        """Number of samples."""
        return next(self.buffers()).shape[1]

    def resize(self, size: int) -> None:
        """Start again with `size` samples."""
        for name, value in self._start.items():
            buffer = self.get_buffer(name)
            setattr(self, name, buffer.new_full((self.sides, size), value))

    def slots(self, indices: Tensor, anchors: int) -> Tensor:
        """(anchors,) the slot of each anchor: all samples on one side, then on the other."""
        views = anchors // len(indices)
        if self.sides == 1:
            return indices.repeat(views) if views > 1 else indices
        return torch.cat([indices + side * self.size for side in range(views)])

    def read(self, name: str, slots: Tensor, like: Tensor) -> Tensor:
        """The numbers of these slots, a copy in the type of `like`."""
        return self.get_buffer(name).view(-1)[slots].to(like.dtype)

    def write(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Store numbers; equal slots must have equal values."""
        buffer = self.get_buffer(name)
        buffer.view(-1)[slots] = values.to(buffer.dtype)


class Visits:
    """Which slots a batch visits, and with what: one value for all anchors of a slot.

    Both views of a sample may share a slot, and a sample occurs again where a sampler pads. Its
    anchors then count with their mean. In several processes the anchors of all ranks are joined.

    Args:
        slots: (n,) the slot of each of this rank's anchors.
        counted: (n,) 1 for anchors that count, 0 for others; None: all do.
    """

    def __init__(self, slots: Tensor, counted: Tensor | None) -> None:
        self._sizes = distributed.batch_sizes(len(slots))
        counts = torch.ones_like(slots) if counted is None else counted.to(slots.dtype)
        both = distributed.gather(torch.stack([slots, counts], 1), self._sizes)
        self.slots, counts = both.T.contiguous()
        # One number below n for each distinct slot; no size is read back from the device.
        self._first = torch.searchsorted(self.slots.sort().values, self.slots)
        number, self._left_out = self._sum(counts), counts == 0
        self.valid, self._number = number > 0, number.clamp(min=1)
        """Which of `slots` have an anchor that counts, and how many they have."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean of (n,) `values` over the anchors of each of `slots`; 0 where none counts."""
        values = distributed.gather(values, self._sizes).masked_fill(self._left_out, 0.0)
        return self._sum(values) / self._number

    def log_mean_exp(self, values: Tensor) -> Tensor:
        """`mean` of exp(values), as a logarithm that does not overflow; −inf where none counts."""
        values = distributed.gather(values, self._sizes).masked_fill(self._left_out, -math.inf)
        lowest, first = torch.full_like(values, -math.inf), self._first
        peak = lowest.scatter_reduce(0, first, values, "amax")[first]
        peak = peak.masked_fill(peak.isneginf(), 0.0)
        return peak + (self._sum(torch.exp(values - peak)) / self._number).log()

    def _sum(self, values: Tensor) -> Tensor:
        """(n,) the sum of the values over all anchors that visit the slot of each."""
        # index_put adds up in a fixed order on every device, index_add does not.
        first, zeros = self._first, torch.zeros_like(values)
        return zeros.index_put_((first,), values, accumulate=True)[first]
