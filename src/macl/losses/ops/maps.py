"""How similarities become logits: l = s/τ with one τ or one per anchor, or l = g(s)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogitMap:
    """A similarity map g: the logit of a pair is g(s), in place of s/τ.

    A subclass is a frozen dataclass of float parameters with a unique `name`. Autograd through
    `value` must give `derivative`: the operator uses the latter, everything else the former.
    """

    name: ClassVar[str] = ""
    known: ClassVar[dict[str, type[LogitMap]]] = {}

    def __init_subclass__(cls) -> None:
        if not cls.name or cls.known.get(cls.name, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__name__} needs a class attribute `name` of its own.")
        cls.known[cls.name] = cls

    def value(self, s: Tensor) -> Tensor:
        """g(s), elementwise."""
        raise NotImplementedError

    def derivative(self, s: Tensor) -> Tensor:
        """dg/ds, elementwise."""
        raise NotImplementedError

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """g(s) and dg/ds; a map overrides this where they have a part in common."""
        return self.value(s), self.derivative(s)

    def largest(self) -> float:
        """A bound of |g| on [−1, 1]; infinite where the sums need each row's maximum."""
        return math.inf

    def scaled(self, factor: float) -> LogitMap:
        """The map factor·g(s)."""
        raise NotImplementedError

    def parameters(self) -> list[float]:
        """The numbers that make this map again: `LogitMap.known[name](*parameters)`."""
        return list(astuple(self))


Logits = Tensor | LogitMap
"""τ as a scalar tensor, τ as (n,), one per anchor, or a map g."""


def logit(s: Tensor, logits: Logits) -> Tensor:
    """l of similarities, (n,) or (n, K), with the gradient that `logits` defines."""
    if not isinstance(logits, Tensor):
        return logits.value(s)
    return s / (logits[:, None] if logits.ndim and s.ndim == 2 else logits)


def sharpened(logits: Logits, factor: float) -> Logits:
    """The logits multiplied by `factor`: τ/factor, or factor·g(s)."""
    return logits / factor if isinstance(logits, Tensor) else logits.scaled(factor)


def part(logits: Logits, start: int, stop: int) -> Logits:
    """The logits of anchors start…stop−1."""
    return logits[start:stop] if isinstance(logits, Tensor) and logits.ndim else logits


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Runs of anchors one after the other; without a copy where there is one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def temperature_at(s: Tensor, logits: Logits) -> Tensor:
    """τ itself; for a map (n,) 1/g'(s), the temperature that acts on pairs of this similarity."""
    if isinstance(logits, Tensor):
        return logits.detach()
    with torch.no_grad():
        return logits.derivative(s.detach()).reciprocal()


class _DetachedTemperature(LogitMap):
    """s / sg[τ(s)]: the derivative is 1/τ(s)."""

    name = "detached"

    def temperature(self, s: Tensor) -> Tensor:
        """τ(s), detached."""
        raise NotImplementedError

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


@dataclass(frozen=True)
class CosineTemperature(_DetachedTemperature):
    """DySTreSS (Manna et al. 2023): τ(s) = tau_min + (tau_max − tau_min)·sin²(πs/2).

    τ is `tau_min` at s = 0 and `tau_max` at s = ±1.
    """

    name: ClassVar[str] = "dystress"
    tau_min: float = 0.1
    tau_max: float = 0.2

    def temperature(self, s: Tensor) -> Tensor:
        """τ(s), detached."""
        wave = torch.sin(s.detach() * (math.pi / 2))
        return wave.square_().mul_(self.tau_max - self.tau_min).add_(self.tau_min)

    def largest(self) -> float:
        """1/tau_min: |s| ≤ 1 and τ(s) ≥ tau_min."""
        return 1 / self.tau_min

    def scaled(self, factor: float) -> CosineTemperature:
        """The same map with both temperatures divided by `factor`."""
        return CosineTemperature(self.tau_min / factor, self.tau_max / factor)


@dataclass(frozen=True)
class ShiftedCosineTemperature(_DetachedTemperature):
    """τ = tau_max for s > shift, tau_min + ½Δ(1 + cos(π(s − shift)/width)) below."""

    name: ClassVar[str] = "shifted_dystress"
    tau_min: float = 0.04
    tau_max: float = 0.05
    shift: float = 0.4
    width: float = 0.7

    def temperature(self, s: Tensor) -> Tensor:
        """τ(s), detached."""
        below = (s.detach() - self.shift).clamp_(max=0.0).mul_(math.pi / self.width)
        wave = below.cos_().add_(1).mul_(0.5)
        return wave.mul_(self.tau_max - self.tau_min).add_(self.tau_min)

    def scaled(self, factor: float) -> ShiftedCosineTemperature:
        """The same map with both temperatures divided by `factor`."""
        return ShiftedCosineTemperature(
            self.tau_min / factor, self.tau_max / factor, self.shift, self.width
        )


@dataclass(frozen=True)
class InverseTanh(LogitMap):
    """Temperature-free logits (Kim and Kim 2025): factor · 2·artanh s.

    At ±1 the logit is infinite. s is therefore moved to the nearest number inside that the floating
    type can hold; value and derivative are those of this number, so that no gradient is cut off.
    """

    name: ClassVar[str] = "artanh"
    factor: float = 1.0

    def value(self, s: Tensor) -> Tensor:
        """factor·log((1 + s)/(1 − s))."""
        if not s.requires_grad:
            return _inside(s).atanh_().mul_(2 * self.factor)
        inside = s + (_inside(s.detach()) - s.detach())
        return self.factor * (torch.log1p(inside) - torch.log1p(-inside))

    def derivative(self, s: Tensor) -> Tensor:
        """factor·2/(1 − s²), as the sum 1/(1 + s) + 1/(1 − s), which loses no digits near ±1."""
        inside = _inside(s)
        return self.factor * ((1 + inside).reciprocal() + (1 - inside).reciprocal())

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Both, from 1 + s and 1 − s computed once."""
        inside = _inside(s)
        above, below = 1 + inside, 1 - inside
        slope = (above * below).reciprocal_().mul_(2 * self.factor)
        return above.div_(below).log_().mul_(self.factor), slope

    def largest(self) -> float:
        """factor·log(4/ε) with ε of float64, whose numbers come closest to ±1."""
        return self.factor * math.log(4 / torch.finfo(torch.float64).eps)

    def scaled(self, factor: float) -> InverseTanh:
        """The same map times `factor`."""
        return InverseTanh(self.factor * factor)


def _inside(s: Tensor) -> Tensor:
    bound = 1 - torch.finfo(s.dtype).eps / 2  # the number next to 1, towards 0
    return s.clamp(-bound, bound)
