"""Similarity maps that take the place of s/τ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from macl.losses.kernels.interface import LogitMap


@dataclass(frozen=True)
class CosineTemperature(LogitMap):
    """DySTreSS (Manna et al. 2023): s / sg[τ(s)], τ(s) = lowest + (highest − lowest)·sin²(πs/2).

    τ is `lowest` at s = 0 and `highest` at s = ±1. It is detached, so the derivative is 1/τ(s).
    """

    name: ClassVar[str] = "dystress"
    lowest: float = 0.1
    highest: float = 0.2

    def temperature(self, s: Tensor) -> Tensor:
        """τ(s), detached."""
        wave = torch.sin(s.detach() * (math.pi / 2))
        return wave.square_().mul_(self.highest - self.lowest).add_(self.lowest)

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

    def largest(self) -> float:
        """1/lowest: |s| ≤ 1 and τ(s) ≥ lowest."""
        return 1 / self.lowest

    def scaled(self, factor: float) -> CosineTemperature:
        """The same map with both temperatures divided by `factor`."""
        return CosineTemperature(self.lowest / factor, self.highest / factor)


@dataclass(frozen=True)
class InverseTanh(LogitMap):
    """Temperature-free logits (Kim and Kim 2025): 2·artanh s = log1p(s) − log1p(−s).

    At ±1 the logit is infinite. s is therefore moved to the nearest number inside that the floating
    type can hold; value and derivative are those of this number, so that no gradient is cut off.
    """

    name: ClassVar[str] = "artanh"

    def value(self, s: Tensor) -> Tensor:
        """log((1 + s)/(1 − s))."""
        if not s.requires_grad:
            return _inside(s).atanh_().mul_(2)
        inside = s + (_inside(s.detach()) - s.detach())
        return torch.log1p(inside) - torch.log1p(-inside)

    def derivative(self, s: Tensor) -> Tensor:
        """2/(1 − s²), as the sum 1/(1 + s) + 1/(1 − s), which loses no digits near ±1."""
        inside = _inside(s)
        return (1 + inside).reciprocal() + (1 - inside).reciprocal()

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Both, from 1 + s and 1 − s computed once."""
        inside = _inside(s)
        above, below = 1 + inside, 1 - inside
        slope = (above * below).reciprocal_().mul_(2)
        return above.div_(below).log_(), slope

    def largest(self) -> float:
        """log(4/ε) with ε of float64, whose numbers come closest to ±1."""
        return math.log(4 / torch.finfo(torch.float64).eps)

    def exponential_(self, s: Tensor) -> Tensor:
        """e^{2·artanh s} = (1 + s)/(1 − s): no exponential, no logarithm."""
        bound = _bound(s.dtype)
        below = 1 - s.clamp_(-bound, bound)
        return s.add_(1).div_(below)

    def weighted_(self, s: Tensor) -> Tensor:
        """e^{g}·g' = (1 + s)/(1 − s) · 2/((1 + s)(1 − s)) = 2/(1 − s)²."""
        bound = _bound(s.dtype)
        return s.clamp_(-bound, bound).neg_().add_(1).square_().reciprocal_().mul_(2)

    def scaled(self, factor: float) -> ScaledInverseTanh:
        """The same map times `factor`."""
        return ScaledInverseTanh(factor)


@dataclass(frozen=True)
class ScaledInverseTanh(InverseTanh):
    """factor · 2·artanh s."""

    name: ClassVar[str] = "scaled_artanh"
    factor: float = 1.0

    def value(self, s: Tensor) -> Tensor:
        """factor·g(s)."""
        return super().value(s) * self.factor

    def derivative(self, s: Tensor) -> Tensor:
        """factor·g'(s)."""
        return super().derivative(s) * self.factor

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Both, times `factor`."""
        value, slope = super().value_and_derivative(s)
        return value.mul_(self.factor), slope.mul_(self.factor)

    def largest(self) -> float:
        """factor·log(4/ε)."""
        return self.factor * super().largest()

    def exponential_(self, s: Tensor) -> Tensor:
        """((1 + s)/(1 − s))^factor."""
        return super().exponential_(s).pow_(self.factor)

    def weighted_(self, s: Tensor) -> Tensor:
        """e^{factor·g}·factor·g'."""
        value, slope = self.value_and_derivative(s)
        return value.exp_().mul_(slope)

    def scaled(self, factor: float) -> ScaledInverseTanh:
        """The same map times `factor`."""
        return ScaledInverseTanh(self.factor * factor)


def _inside(s: Tensor) -> Tensor:
    bound = _bound(s.dtype)
    return s.clamp(-bound, bound)


def _bound(dtype: torch.dtype) -> float:
    return 1 - torch.finfo(dtype).eps / 2  # the number next to 1, towards 0
