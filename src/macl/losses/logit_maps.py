"""Losses whose logits are a map of the similarity: DySTreSS and temperature-free."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from macl.losses.concerns import Acting, Concern
from macl.losses.contrastive import Form
from macl.losses.family import NTXent
from macl.losses.kernels.interface import LogitMap
from macl.losses.kernels.maps import CosineTemperature, InverseTanh
from macl.losses.temperature import check_positive

if TYPE_CHECKING:
    from typing_extensions import Unpack

MONOTONE = 4.5
"""s/τ(s) of the unshifted form increases everywhere only if highest < 4.5·lowest."""


@dataclass(frozen=True)
class ShiftedCosineTemperature(LogitMap):
    """s / sg[τ(s)]: τ = highest for s > shift, lowest + ½Δ(1 + cos(π(s − shift)/width)) below."""

    name: ClassVar[str] = "shifted_dystress"
    lowest: float = 0.04
    highest: float = 0.05
    shift: float = 0.4
    width: float = 0.7

    def temperature(self, s: Tensor) -> Tensor:
        """τ(s), detached."""
        below = (s.detach() - self.shift).clamp_(max=0.0).mul_(math.pi / self.width)
        wave = below.cos_().add_(1).mul_(0.5)
        return wave.mul_(self.highest - self.lowest).add_(self.lowest)

    def value(self, s: Tensor) -> Tensor:
        """s/τ(s)."""
        return s / self.temperature(s)

    def derivative(self, s: Tensor) -> Tensor:
        """1/τ(s)."""
        return self.temperature(s).reciprocal_()

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """s/τ(s) and 1/τ(s), from one τ(s)."""
        slope = self.derivative(s)
        return s * slope, slope

    def scaled(self, factor: float) -> ShiftedCosineTemperature:
        """The same map with both temperatures divided by `factor`."""
        return ShiftedCosineTemperature(
            self.lowest / factor, self.highest / factor, self.shift, self.width
        )


class DySTreSS(NTXent):
    """DySTreSS, Manna et al. 2023: InfoNCE with a temperature for each pair, by its similarity.

        l = s / sg[τ(s)],   τ(s) = lowest + (highest − lowest)·sin²(πs/2)

    Positives too. τ is `lowest` at s = 0 and `highest` at s = ±1.

    Args:
        lowest: τ of unrelated pairs. Published: [0.1, 0.2] for ImageNet, [0.07, 0.2] for CIFAR.
        highest: τ of equal and of opposite pairs.
        shift: c of the shifted form, published for sentences with [0.04, 0.05], c = 0.4: τ is
            `highest` for s > c and lowest + ½Δ(1 + cos(π(s − c)/k)) below.
        width: k of the shifted form; 0.7 if only `shift` is given.
        form: as `ContrastiveLoss`.
    """

    pair_function = None
    temperature_keys = ("lowest", "highest")

    def __init__(
        self,
        lowest: float = 0.1,
        highest: float = 0.2,
        *,
        shift: float | None = None,
        width: float | None = None,
        **form: Unpack[Form],
    ) -> None:
        lowest, highest = check_positive("lowest", lowest), check_positive("highest", highest)
        if highest < lowest:
            raise ValueError(f"highest ({highest}) is below lowest ({lowest}); swap them.")
        if shift is None:
            if width is not None:
                raise ValueError("width belongs to the shifted form: give shift too.")
            super().__init__(CosineTemperature(lowest, highest), **form)
            monotone = highest < MONOTONE * lowest
        else:
            width = 0.7 if width is None else width
            if not -1 <= shift <= 1:
                raise ValueError(f"shift is a cosine similarity between -1 and 1, got {shift}.")
            if not width > 0:
                raise ValueError(f"width must be positive, got {width}. The published one is 0.7.")
            map = ShiftedCosineTemperature(lowest, highest, float(shift), float(width))
            super().__init__(map, **form)
            logits = map.value(torch.linspace(-1, 1, 4001, dtype=torch.float64))
            monotone = bool((logits.diff() > 0).all())
        self.lowest, self.highest, self.monotone = lowest, highest, monotone
        self.temperature_range = lowest, highest
        if not monotone:
            warnings.warn(
                f"with temperatures from {lowest:g} to {highest:g} the logit s/τ(s) does not "
                "increase everywhere: a more similar pair can count as less similar. Bring them "
                f"closer together; unshifted, highest below {MONOTONE}·lowest is enough.",
                stacklevel=2,
            )

    def concerns(self, acting: Acting) -> list[Concern]:
        """Logits that do not increase with the similarity."""
        if self.monotone:
            return []
        return [
            Concern(
                "the logit s/τ(s) does not increase everywhere, so that a more similar pair can "
                "count as less similar",
                f"Bring loss.lowest ({self.lowest:g}) and loss.highest ({self.highest:g}) closer "
                f"together; unshifted, highest below {MONOTONE}·lowest is enough.",
                "The order of the negatives' weights is then not that of their similarities.",
                {"lowest": self.lowest, "highest": self.highest},
            )
        ]


class TemperatureFree(NTXent):
    """Temperature-free InfoNCE, Kim and Kim 2025: l = log((1 + s)/(1 − s)) = 2·artanh s.

    There is nothing to tune. The slope of the logit, 2/(1 − s²), grows without bound near s = ±1:
    positives that are nearly equal keep their gradient, and so do negatives, so that embeddings
    that all start in one direction get very large gradients. At ±1 exactly, logit and gradient are
    those of the nearest number inside.

    Args:
        form: as `ContrastiveLoss`.
    """

    pair_function = None
    temperature_keys = ()
    temperature_range = 0.005, 0.5
    """1/g'(s) = (1 − s²)/2, from a similarity of 0.995 on."""

    def __init__(self, **form: Unpack[Form]) -> None:
        super().__init__(InverseTanh(), **form)
