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
    return _Unit.apply((names,), _wide(z))[0]


def unit_views(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """`unit_rows` of two views in one step of the graph, which small batches notice."""
    return _Unit.apply((("z1",), ("z2",)), _wide(z1), _wide(z2))


def _wide(z: Tensor) -> Tensor:
    return z if z.dtype in (torch.float32, torch.float64) else z.float()


class _Unit(torch.autograd.Function):
    """u = z/|z|, dL/dz = (g − u⟨u, g⟩)/|z|: fewer passes than composing it from operations."""

    @staticmethod
    def forward(ctx: Any, names: tuple[tuple[str, ...], ...], *views: Tensor) -> tuple[Tensor, ...]:
        parts = [_normalised(z, own) for z, own in zip(views, names, strict=True)]
        units, inverses = zip(*parts, strict=True)
        ctx.save_for_backward(*units, *inverses)
        return units

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        units, inverses = ctx.saved_tensors[: len(grads)], ctx.saved_tensors[len(grads) :]
        needed = ctx.needs_input_grad[1:]
        return None, *map(_turned, grads, units, inverses, needed)


def _turned(grad: Tensor, unit: Tensor, inverse: Tensor, needed: bool) -> Tensor | None:
    if not needed:
        return None
    along = (unit * grad).sum(1, keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1).mul_(inverse)


def _normalised(z: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Unit rows and 1/|z|."""
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    least, most = (float(bound) for bound in torch.aminmax(norm))
    safe = torch.finfo(z.dtype).tiny ** 0.25
    if safe < least and most < 1 / safe:
        inverse = norm.reciprocal_()
        return z * inverse, inverse
    return _carefully(z, names)  # squares may have left the type's range; or zeros, or NaN


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
