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

    def scaled(self, factor: float) -> ScaledInverseTanh:
        """The same map times `factor`."""
        return ScaledInverseTanh(self.factor * factor)


def _inside(s: Tensor) -> Tensor:
    bound = 1 - torch.finfo(s.dtype).eps / 2  # the number next to 1, towards 0
    return s.clamp(-bound, bound)
