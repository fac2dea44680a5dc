"""Rows of length 1, at any scale."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.ops.tiled import wide

_Names = tuple[str, str, int]
"""What the user calls the first rows, the others, and how many the first are."""

# Between this length and its inverse, squares and products of lengths are far from the type's ends.
_SAFE = {dtype: torch.finfo(dtype).tiny ** 0.25 for dtype in (torch.float32, torch.float64)}


def reads_values(z: Tensor) -> bool:
    """Whether values of `z` may be read back: on the CPU in eager mode.

    Elsewhere this would wait for the device, or end a compiled graph.
    """
    return z.device.type == "cpu" and not torch.compiler.is_compiling()


def unit_rows(z: Tensor, name: str = "z", other: str = "", first: int = 0) -> Tensor:
    """(n, D) rows scaled to length 1, in float32 at least; right at any scale the type can hold.

    A row of zeros stays zero and gets no gradient: it has no direction to turn in. A row with NaN
    or infinite values becomes NaN where values are not read back (`reads_values`), else it raises
    a ValueError. `name` is what the user calls `z`; with `other` that is its first `first` rows.
    """
    return _Unit.apply(wide(z), (name, other, first if other else len(z)))


def unit_views(z1: Tensor, z2: Tensor) -> Tensor:
    """`unit_rows` of two views as one matrix: half the launches, and one step of the graph."""
    return unit_rows(torch.cat([z1, z2]), "z1", "z2", z1.shape[0])


def check_finite(z: Tensor, name: str) -> None:
    """Raise a ValueError with the first row that has NaN or infinite values; see `unit_rows`."""
    _check_finite(_largest(z.detach()), (name, "", len(z)))


class _Unit(torch.autograd.Function):
    """u = z/|z|, dL/dz = (g − u⟨u, g⟩)/|z|: fewer passes than composing it from operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, names: _Names) -> Tensor:
        unit, length = _normalized(z, names)
        ctx.save_for_backward(unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        unit, length = ctx.saved_tensors
        along = (unit * grad).sum(1, keepdim=True)
        return torch.addcmul(grad, unit, along, value=-1).div_(length), None


def _normalized(z: Tensor, names: _Names) -> tuple[Tensor, Tensor]:
    """Unit rows and |z|."""
    if not reads_values(z):
        return _carefully(z, _largest(z))
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    least, most = torch.aminmax(norm)
    safe = _SAFE[z.dtype]
    if safe < least.item() and most.item() < 1 / safe:
        return z / norm, norm
    largest = _largest(z)
    _check_finite(largest, names)
    return _carefully(z, largest)


def _largest(z: Tensor) -> Tensor:
    """(n, 1) largest magnitude in each row."""
    return torch.linalg.vector_norm(z, torch.inf, dim=1, keepdim=True)


def _check_finite(largest: Tensor, names: _Names) -> None:
    if not bool(largest.isfinite().all()):
        name, other, split = names
        row = int((~largest.isfinite()).flatten().nonzero()[0])
        if row >= split:
            name, row = other, row - split
        raise ValueError(
            f"{name} has NaN or infinite values (first in row {row}). The loss was not "
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
