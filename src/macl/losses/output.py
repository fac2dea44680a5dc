"""The result of a loss: its value, and the metrics that it is made of, computed when read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from macl import distributed
from macl.losses.objectives import objective
from macl.losses.ops.maps import Logits, temperature_at
from macl.losses.pairs import lazy
from macl.losses.temperature import StepInfo

BINS = 10
"""Bins of the histogram of τ."""

COLUMN = "temperature_in_"
"""Begins the names of the histogram's columns: temperature_in_0.05_0.067 is the share of anchors
with τ between the two."""

Range = tuple[float, float]
"""The lowest and the highest τ of a histogram."""


class Terms(NamedTuple):
    """What a loss makes of its pairs, one number per anchor."""

    logits: Logits
    """τ or the map that was used."""
    per_anchor: Tensor | Callable[[], Tensor]
    """(n,) losses with gradient; or what computes them without, where the mean is known."""
    margin: Tensor | Callable[[], Tensor]
    """(n,) x, or what computes it when it is asked for."""
    counted: Tensor | None = None
    """(n,) 1 for the anchors that enter the mean, 0 for the others; None for all of them."""
    floored: Callable[[], Tensor] | None = None
    """Scalar bool, where the temperature module does not know it."""
    extra_metrics: Mapping[str, Callable[[], Tensor]] = MappingProxyType({})
    """See `LossOutput.extra_metrics`."""


class LossOutput:
    """A loss and what it was made of. Everything but `loss` and `per_anchor` is detached.

    Metrics are computed when they are read, from what the loss has computed anyway. In several
    processes that exchanges numbers between ranks: `contrast` reads them at once, so that a rank
    may look at its output alone.
    """

    def __init__(
        self,
        loss: Tensor,
        terms: Terms,
        step: StepInfo,
        is_floored: Callable[[StepInfo], Tensor],
        bounds: Range | None = None,
    ) -> None:
        self.loss, self._terms, self._step = loss, terms, step
        self._is_floored, self._bounds = is_floored, bounds
        self.added: dict[str, Tensor] = {}

    @property
    def logits(self) -> Logits:
        """τ or the map that was used, as the temperature gave it."""
        return self._terms.logits

    @lazy
    def per_anchor(self) -> Tensor:
        """(n,) the loss of each anchor, unweighted."""
        given = self._terms.per_anchor
        return given if isinstance(given, Tensor) else given()

    @lazy
    def margin(self) -> Tensor:
        """(n,) x = logsumexp of the negatives' logits − the positive's logit."""
        given = self._terms.margin
        if isinstance(given, Tensor):
            return given.detach()
        with torch.no_grad(), full_precision(self.loss.device.type):
            return given().detach()

    @lazy
    def alignment(self) -> Tensor:
        """Scalar A, the mean positive similarity over the whole (global) batch."""
        return self._step.alignment

    @lazy
    def temperature(self) -> Tensor:
        """τ that was used: a scalar, or (n,) where each anchor has its own."""
        return temperature_at(self._step.positive, self._terms.logits)

    @lazy
    def floored(self) -> Tensor:
        """Scalar bool: the temperature's floor was acting."""
        given = self._terms.floored
        return self._is_floored(self._step) if given is None else given()

    @lazy
    def extra_metrics(self) -> dict[str, Tensor]:
        """Scalars that only this loss has, by name: SigLIP's bias, SogCLR's mean log u, …"""
        with torch.no_grad():
            own = {name: compute() for name, compute in self._terms.extra_metrics.items()}
        return own | self.added

    @property
    def own(self) -> dict[str, Tensor]:
        """The name of `extra_metrics` in version 0.2."""
        warnings.warn("LossOutput.own is now extra_metrics", DeprecationWarning, stacklevel=2)
        return self.extra_metrics

    @lazy
    def bounds(self) -> Range | None:
        """The range of the histogram of τ, where each anchor has its own."""
        bounds = self._bounds
        if self.temperature.ndim == 0 or (bounds is not None and bounds[0] >= bounds[1]):
            return None  # one τ for all
        return bounds

    @lazy
    def gradient_scale(self) -> Tensor:
        """(n,) W_i = σ(x_i), the factor that InfoNCE's gradient carries."""
        return torch.sigmoid(self.margin)

    @lazy
    def effective_anchors(self) -> Tensor:
        """Scalar (ΣW)²/(n·ΣW²) over all ranks, the share of anchors that InfoNCE learns from."""
        return self.spread.effective_anchors

    @lazy
    def temperature_histogram(self) -> Tensor | None:
        """(10,) share of all ranks' anchors in each bin of `edges(bounds)`; None for one τ."""
        return self.spread.histogram

    @lazy
    def spread(self) -> Spread:
        """W and τ over the anchors of all ranks."""
        own = torch.stack([self.margin, self.temperature.expand_as(self.margin)])
        sizes = distributed.batch_sizes(own.shape[1])
        margin, temperature = distributed.gather(own.T, sizes).unbind(1)
        return Spread.of(margin, temperature, self.bounds)

    @lazy
    def info_nce(self) -> Tensor:
        """Scalar mean −log P: comparable between objectives, some of which have constant values."""
        return objective("softplus", self.margin).mean()

    def synchronize(self) -> LossOutput:
        """Read what is exchanged between ranks, on every rank at the same place."""
        if distributed.world_size() > 1:
            _ = self.alignment, self.spread
        return self

    def detach(self) -> LossOutput:
        """Read every metric and let go of the graph, so that the output can be kept.

        Where there are several ranks, all of them do so at the same place.
        """
        self.metrics()
        self.loss, self.per_anchor = self.loss.detach(), self.per_anchor.detach()
        logits = self.logits.detach() if isinstance(self.logits, Tensor) else self.logits
        self._terms = Terms(logits, self.per_anchor, self.margin)
        del self._step, self._is_floored
        return self

    def metrics(self) -> dict[str, Tensor]:
        """Detached scalars to log, by name.

        `temperature` is the mean over anchors. Where each anchor has its own, `temperature_std` is
        the standard deviation and `temperature_in_…` the histogram. Losses add their own, such as
        `at_bound`, the share of anchors whose temperature lies at one of its bounds.
        """
        values = {
            "info_nce": self.info_nce,
            "alignment": self.alignment,
            "temperature": self.spread.mean,
            "gradient_scale": self.gradient_scale.mean(),
            "effective_anchors": self.effective_anchors,
            "floored": self.floored,
        }
        if self.temperature.ndim:
            values["temperature_std"] = self.spread.std
        values |= self.extra_metrics
        if self.bounds is not None and self.spread.histogram is not None:
            values |= zip(columns(self.bounds), self.spread.histogram.unbind(), strict=True)
        return values


def average_metrics(outputs: list[LossOutput]) -> dict[str, Tensor]:
    """The metrics of several outputs of one step as one: means; a flag of any counts."""
    parts = [output.metrics() for output in outputs]
    if len(parts) == 1:
        return parts[0]
    return {
        name: torch.stack([part[name] for part in parts]).any()
        if value.dtype == torch.bool
        else torch.stack([part[name] for part in parts]).mean()
        for name, value in parts[0].items()
    }


def full_precision(device_type: str) -> AbstractContextManager[None]:
    """No autocast inside; entering its context costs as much as a small matrix product."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def halved(device_type: str) -> bool:
    """Whether autocast computes products in half precision here."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return False
    return torch.get_autocast_dtype(device_type) in (torch.float16, torch.bfloat16)


class LossBehavior(NamedTuple):
    """How a loss acts on a sample, (n,) for n anchors."""

    temperature: Tensor
    """τ."""
    negatives: Tensor
    """Number of negatives K."""
    pull: Tensor
    """−τ ∂L/∂s⁺, the factor with which the positive is attracted."""
    push: Tensor
    """τ Σ_j ∂L/∂s_j, that with which the negatives are repelled."""


@dataclass(frozen=True)
class ConfigWarning:
    """A setting of a loss that does not fit the embeddings or the batch."""

    state: str
    """What is wrong, a clause without a full stop."""
    change: str
    """What to change, a sentence with the keys of a recipe."""
    reason: str
    evidence: Mapping[str, float] = field(default_factory=dict)


class Spread(NamedTuple):
    """How W and τ are spread over the anchors of all ranks."""

    effective_anchors: Tensor
    """Scalar (ΣW)²/(n·ΣW²), from logarithms, which do not underflow."""
    mean: Tensor
    """Scalar mean of τ."""
    std: Tensor
    """Scalar standard deviation of τ (divided by n)."""
    histogram: Tensor | None
    """(BINS,) share of the anchors in each bin of τ; None without bounds."""

    @classmethod
    def of(cls, margin: Tensor, temperature: Tensor, bounds: Range | None = None) -> Spread:
        """Of (n,) x, with W = σ(x), and (n,) τ."""
        log_w = torch.nn.functional.logsigmoid(margin)
        total = log_w.logsumexp(0)
        share = torch.exp(2 * total - (2 * log_w).logsumexp(0)) / len(margin)
        share = torch.where(total.isneginf(), 0.0, share)
        histogram = None if bounds is None else _shares(temperature, bounds)
        return cls(share, temperature.mean(), temperature.std(correction=0), histogram)


def edges(bounds: Range) -> list[float]:
    """The BINS + 1 edges of the histogram, evenly spaced on a logarithmic scale."""
    lowest, highest = bounds
    return [lowest * (highest / lowest) ** (k / BINS) for k in range(BINS + 1)]


def columns(bounds: Range) -> list[str]:
    """The names of the histogram's columns."""
    names = [f"{edge:.4g}" for edge in edges(bounds)]
    return [f"{COLUMN}{low}_{high}" for low, high in pairwise(names)]


def is_bin(name: str) -> bool:
    """Whether a column of metrics.csv is a bin of the histogram."""
    return name.startswith(COLUMN)


def parse_column(name: str) -> Range | None:
    """The two edges of a histogram's column; None for any other column."""
    if not is_bin(name):
        return None
    low, _, high = name.removeprefix(COLUMN).partition("_")
    return float(low), float(high)


def _shares(temperature: Tensor, bounds: Range) -> Tensor:
    """(BINS,) share of τ in each bin; those outside count for the nearest."""
    lowest, highest = bounds
    place = (temperature / lowest).log() * (BINS / math.log(highest / lowest))
    place = place.floor().clamp(0, BINS - 1)
    numbers = torch.arange(BINS, device=place.device, dtype=place.dtype)
    return (place[:, None] == numbers).to(place.dtype).mean(0)
