"""The result of a loss: its value and the figures that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from macl.losses import objectives, spread
from macl.losses.lazy import lazy


@dataclass(frozen=True)
class Contrast:
    """A loss and what it was made of. Everything but `loss` and `per_anchor` is detached."""

    loss: Tensor
    """What to call backward on: a scalar, or (n,) with reduction="none"."""
    per_anchor: Tensor
    """(n,) the loss of each anchor, unweighted."""
    margin: Tensor
    """(n,) x = logsumexp of the negatives' logits − the positive's logit."""
    alignment: Tensor
    """Scalar A, the mean positive similarity over the whole (global) batch."""
    temperature: Tensor
    """τ that was used: a scalar, or (n,) where each anchor has its own (see `temperature_at`)."""
    floored: Tensor
    """Scalar bool: the temperature's floor was acting."""
    own: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars that only this loss has, by name: SigLIP's bias, SogCLR's mean log u, …"""
    bounds: spread.Range | None = None
    """The range of the histogram of τ, where each anchor has its own."""
    summaries: Tensor | None = None
    """(ranks, k) what every rank's anchors add to the figures of the whole batch; None: computed
    from this contrast alone. See `macl.losses.spread`."""

    @lazy
    def gradient_scale(self) -> Tensor:
        """(n,) W_i = σ(x_i), the factor that InfoNCE's gradient carries."""
        return torch.sigmoid(self.margin)

    @lazy
    def effective_anchors(self) -> Tensor:
        """Scalar (ΣW)²/(n·ΣW²), the share of anchors that InfoNCE learns from, 1/n to 1.

        Over the anchors of all ranks. 0 if no anchor has a negative.
        """
        return spread.effective_anchors(self._summaries)

    @lazy
    def temperature_histogram(self) -> Tensor | None:
        """(10,) share of all ranks' anchors in each bin of τ, between `spread.edges(bounds)`.

        None where all anchors have one τ.
        """
        return None if self.bounds is None else spread.histogram(self._summaries)

    @lazy
    def _summaries(self) -> Tensor:
        if self.summaries is not None:
            return self.summaries
        return spread.summary(self.margin, self.temperature, self.bounds)[None]

    @lazy
    def info_nce(self) -> Tensor:
        """Scalar mean −log P: comparable between objectives, some of which have constant values."""
        return objectives.info_nce(self.margin).mean()

    def metrics(self) -> dict[str, Tensor]:
        """Detached scalars to log, by name.

        `temperature` is the mean over anchors. Where each anchor has its own, `temperature_std` is
        the standard deviation and `temperature_in_…` the histogram. Losses add their own, such as
        `at_bound`, the share of anchors whose temperature lies at one of its bounds.
        """
        found = {
            "info_nce": self.info_nce,
            "alignment": self.alignment,
            "temperature": spread.mean_temperature(self._summaries),
            "gradient_scale": self.gradient_scale.mean(),
            "effective_anchors": self.effective_anchors,
            "floored": self.floored,
        }
        if self.temperature.ndim:
            found["temperature_std"] = spread.std_temperature(self._summaries)
        found |= self.own
        if self.bounds is not None and self.temperature_histogram is not None:
            shares = self.temperature_histogram.unbind()
            found |= zip(spread.columns(self.bounds), shares, strict=True)
        return found


def average(one: Contrast, two: Contrast) -> Contrast:
    """Two contrasts of one step as one: losses and figures halved, anchors side by side."""
    return Contrast(
        loss=(one.loss + two.loss) / 2 if one.loss.ndim == 0 else torch.cat([one.loss, two.loss]),
        per_anchor=torch.cat([one.per_anchor, two.per_anchor]),
        margin=torch.cat([one.margin, two.margin]),
        alignment=(one.alignment + two.alignment) / 2,
        temperature=(
            (one.temperature + two.temperature) / 2
            if one.temperature.ndim == 0
            else torch.cat([one.temperature, two.temperature])
        ),
        floored=one.floored | two.floored,
        own={name: (value + two.own[name]) / 2 for name, value in one.own.items()},
        bounds=one.bounds,
        summaries=(
            None
            if one.summaries is None or two.summaries is None
            else torch.cat([one.summaries, two.summaries])
        ),
    )
