"""How a loss weighs a sample, and how it weighed the batches of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from macl.diagnosis.gradient_profile import GradientProfile
from macl.diagnosis.space import false_negatives
from macl.losses import ContrastiveLoss
from macl.losses.output import ConfigWarning, LossBehavior

LOGGED = {"gradient_scale", "alignment", "temperature", "floored"}
"""Columns of metrics.csv that a diagnosis reads."""


@dataclass(frozen=True)
class History:
    """What training logged: (first epoch, last epoch) means, and the range of τ."""

    gradient_scale: tuple[float, float]
    alignment: tuple[float, float]
    lowest_alignment: float
    temperature: tuple[float, float]
    """(lowest, highest)."""
    floored: float
    """Share of the logged steps in which the temperature's floor was acting."""
    effective_anchors: tuple[float, float] | None = None
    """ESS; None for runs of earlier versions, which did not log it."""

    @classmethod
    def read(cls, rows: Iterable[dict[str, float]]) -> History | None:
        """From the rows of metrics.csv; None where no row has what contrastive methods log."""
        steps = [row for row in rows if row.keys() >= LOGGED]
        if not steps:
            return None

        def ends(key: str) -> tuple[float, float]:
            parts = ([r[key] for r in steps if r["epoch"] == steps[e]["epoch"]] for e in (0, -1))
            first, last = (sum(values) / len(values) for values in parts)
            return first, last

        temperatures = [row["temperature"] for row in steps]
        has_ess = all("effective_anchors" in row for row in steps)
        return cls(
            gradient_scale=ends("gradient_scale"),
            alignment=ends("alignment"),
            lowest_alignment=min(row["alignment"] for row in steps),
            temperature=(min(temperatures), max(temperatures)),
            floored=sum(row["floored"] for row in steps) / len(steps),
            effective_anchors=ends("effective_anchors") if has_ess else None,
        )


@dataclass(frozen=True)
class Contrast:
    """What a diagnosis knows of a loss and of whom it contrasts."""

    loss: ContrastiveLoss
    profile: GradientProfile
    history: History | None = None
    confused: Mapping[str, float] | None = None
    """Rates of false negatives, where they are known."""
    names: Sequence[str] | None = None
    """Of the items."""
    has_bank: bool = False
    projected: bool = True
    """False where the projector is missing: the loss did not see what is measured in its place."""
    modality: str | None = None
    """None: unknown."""

    @classmethod
    def of(
        cls,
        loss: ContrastiveLoss,
        profiles: Sequence[GradientProfile],
        views: Sequence[Tensor],
        labels: Tensor | None,
        **about: Any,
    ) -> Contrast:
        """From the batches of a sample, whose views are (N, D) each.

        Rates of false negatives need labels, and a loss that does not learn from them.
        """
        joined = GradientProfile.join(profiles)
        confused = None
        if labels is not None and not loss.takes_labels:
            first, second = views
            confused = false_negatives(first, second, labels, joined.temperature.mean().item())
        return cls(loss, joined, confused=confused, **about)

    @property
    def logged(self) -> History | None:
        """What training logged, where the sample is not what the loss saw."""
        return None if self.projected else self.history

    @property
    def scale(self) -> float:
        """Mean W."""
        return self.logged.gradient_scale[1] if self.logged else self.profile.scale.mean().item()

    @property
    def carried(self) -> float:
        """The mean factor that the gradient of the loss really carries."""
        profile = self.profile
        carries_scale = bool((profile.carried - profile.scale).abs().max() < 1e-3)
        return self.scale if self.logged and carries_scale else profile.carried.mean().item()

    @property
    def alignment(self) -> float:
        """A in the last batches."""
        return self.logged.alignment[1] if self.logged else self.profile.alignment.mean().item()

    @property
    def temperature(self) -> float:
        """Mean τ: of the sample, or at the alignment in the last batches where τ follows it."""
        bounds = self.loss.temperature.alignment_range()
        if bounds is None:
            return self.profile.temperature.mean().item()
        low, high = bounds
        tau = low + (high - low) * (self.alignment + 1) / 2
        return max(tau, self.loss.temperature.floor or tau)

    @property
    def effective_share(self) -> float:
        """Effective negatives over K."""
        return self.profile.effective_share.mean().item()

    @property
    def negatives_key(self) -> str:
        """The recipe's key that sets the number of negatives."""
        return "method.queue_size" if self.has_bank else "batch_size"

    @cached_property
    def config_warnings(self) -> list[ConfigWarning]:
        """What the loss states about its own settings."""
        own = self.profile
        return self.loss.config_warnings(
            LossBehavior(own.anchor_temperature, own.count, own.carried, own.pushed)
        )
