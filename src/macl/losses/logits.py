"""How similarities become logits: l = s/τ with a scalar τ or one per anchor, or l = g(s)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from macl.losses.kernels.operator import Logits

__all__ = ["Logits", "joined", "logit", "part", "sharpened", "temperature_at"]


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
