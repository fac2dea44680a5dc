"""Rows of length 1, at any scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def unit_rows(z: Tensor, *names: str) -> Tensor:
    """(n, D) rows scaled to length 1, in float32 at least; right at any scale the type can hold.

    A row of zeros stays zero and gets no gradient: it has no direction to turn in.

    Args:
        z: the rows of one matrix, or of several of equal length, one below the other.
        names: what the user calls each of them.

    Raises:
        ValueError: NaN or infinite values, with the first row that has one.
    """
    if z.dtype not in (torch.float32, torch.float64):
        z = z.float()
    return _Unit.apply(z, names)


class _Unit(torch.autograd.Function):
    """u = z/|z|, dL/dz = (g − u⟨u, g⟩)/|z|: fewer passes than composing it from operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, names: tuple[str, ...]) -> Tensor:
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        least, most = (float(bound) for bound in torch.aminmax(norm))
        safe = torch.finfo(z.dtype).tiny ** 0.25
        if safe < least and most < 1 / safe:
            inverse = norm.reciprocal_()
            unit = z * inverse
        else:  # squares may have left the range of the type, or there are zeros, or NaN
            unit, inverse = _carefully(z, names)
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        unit, inverse = ctx.saved_tensors
        along = (unit * grad).sum(1, keepdim=True)
        return torch.addcmul(grad, unit, along, value=-1).mul_(inverse), None


def _carefully(z: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Unit rows and 1/|z|, each row divided by its largest entry before it is squared."""
    largest = z.abs().amax(1, keepdim=True)
    if not bool(largest.isfinite().all()):
        first = int((~largest.isfinite()).flatten().nonzero()[0])
        which, row = divmod(first, len(z) // len(names))
        raise ValueError(
            f"{names[which]} has NaN or infinite values (first in row {row}). The loss was not "
            "computed; lower the learning rate, clip gradients, or look at the encoder's output."
        )
    # Gradients grow as 1/length: below this (about 1e-34 in float32) they would overflow.
    tiny = torch.finfo(z.dtype).tiny ** 0.9
    z = z / largest.clamp(min=tiny)
    inverse = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=0.5).reciprocal_()
    inverse = torch.where(largest > tiny, inverse, torch.zeros_like(inverse))
    return z * inverse, inverse / largest.clamp(min=tiny)
