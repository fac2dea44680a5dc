"""Rows of length 1, at any scale."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.ops.tiled import wide

# Between this length and its inverse, squares and products of lengths are far from the type's ends.
_SAFE = {dtype: torch.finfo(dtype).tiny ** 0.25 for dtype in (torch.float32, torch.float64)}


def reads_values(z: Tensor) -> bool:
    """Whether values of `z` may be read back: on the CPU in eager mode.

    Elsewhere this would wait for the device, or end a compiled graph.
    """
    return z.device.type == "cpu" and not torch.compiler.is_compiling()


def unit_rows(z: Tensor, *names: str) -> Tensor:
    """(n, D) rows scaled to length 1, in float32 at least; right at any scale the type can hold.

    A row of zeros stays zero and gets no gradient: it has no direction to turn in. A row with NaN
    or infinite values becomes NaN where values are not read back (`reads_values`), else it raises
    a ValueError. `names` are what the user calls each of the matrices that `z` holds.
    """
    return _Unit.apply((names,), wide(z))[0]


def unit_views(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """`unit_rows` of two views in one step of the graph, which small batches notice.

    Where values are not read back, as one matrix: half the launches, and one copy.
    """
    if reads_values(z1) or z1.requires_grad != z2.requires_grad:
        return _Unit.apply((("z1",), ("z2",)), wide(z1), wide(z2))
    one, two = unit_rows(torch.cat([z1, z2]), "z1", "z2").view(2, *z1.shape).unbind(0)
    return one, two


def check_finite(z: Tensor, *names: str) -> None:
    """Raise a ValueError with the first row that has NaN or infinite values; see `unit_rows`."""
    _check_finite(_largest(z.detach()), names)


class _Unit(torch.autograd.Function):
    """u = z/|z|, dL/dz = (g − u⟨u, g⟩)/|z|: fewer passes than composing it from operations."""

    @staticmethod
    def forward(ctx: Any, names: tuple[tuple[str, ...], ...], *views: Tensor) -> tuple[Tensor, ...]:
        parts = [_normalized(z, own) for z, own in zip(views, names, strict=True)]
        units, lengths = zip(*parts, strict=True)
        ctx.save_for_backward(*units, *lengths)
        return units

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        units, lengths = ctx.saved_tensors[: len(grads)], ctx.saved_tensors[len(grads) :]
        parts = zip(grads, units, lengths, ctx.needs_input_grad[1:], strict=True)
        return None, *(turned(*part) if needed else None for *part, needed in parts)


def turned(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """(n, D) dL/dz of u = z/|z| from dL/du: (g − u⟨u, g⟩)/|z|."""
    along = (unit * grad).sum(1, keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1).div_(length)


def plain_norms(z: Tensor) -> Tensor | None:
    """(n, 1) |z|; None where a row is zero, not finite, or its squares leave the type's range."""
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    least, most = torch.aminmax(norm)
    safe = _SAFE[z.dtype]
    return norm if safe < least.item() and most.item() < 1 / safe else None


def _normalized(z: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Unit rows and |z|."""
    if not reads_values(z):
        return _carefully(z, _largest(z))
    if (norm := plain_norms(z)) is not None:
        return z / norm, norm
    largest = _largest(z)
    _check_finite(largest, names)
    return _carefully(z, largest)


def _largest(z: Tensor) -> Tensor:
    """(n, 1) largest magnitude in each row."""
    return torch.linalg.vector_norm(z, torch.inf, dim=1, keepdim=True)


def _check_finite(largest: Tensor, names: tuple[str, ...]) -> None:
    if not bool(largest.isfinite().all()):
        first = int((~largest.isfinite()).flatten().nonzero()[0])
        which, row = divmod(first, len(largest) // len(names))
        raise ValueError(
            f"{names[which]} has NaN or infinite values (first in row {row}). The loss was not "
            "computed; lower the learning rate, clip gradients, or look at the encoder's output."
        )


def _carefully(z: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows and |z| (∞ for rows of zeros); rows are divided by their largest entry first."""
    # Gradients grow as 1/length: below this (about 1e-34 in float32) they would overflow.
    tiny = torch.finfo(z.dtype).tiny ** 0.9
    bound = F.threshold(largest, tiny, torch.inf)  # such rows become 0, and so do their gradients
    z = z / bound
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=0.5)
    return z / norm, norm * bound
