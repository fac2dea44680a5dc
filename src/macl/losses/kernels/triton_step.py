"""The row kernels as functions on tensors: with `lse` and `lse_grad` they make a whole step.

Pure functions without autograd, one launch each. Intermediate results are float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from macl.losses.kernels.triton_configs import rowwise
from macl.losses.kernels.triton_launch import Launch, RowKernel, capability

__all__ = ["Unit", "anchors", "normalised", "plan_rows", "projected"]


class Unit(NamedTuple):
    """Two views of N rows each at length 1."""

    rows: Tensor
    """(2N, D) the first view, then the second."""
    lengths: Tensor
    """(2N,) |z|; ∞ for rows of zeros."""
    positive: Tensor
    """(N,) similarity of the two rows of each pair."""


def normalised(z1: Tensor, z2: Tensor) -> Unit:
    """Both (N, D) views at length 1; see `triton_rows.normalise`."""
    n, dim = z1.shape
    rows, lengths, positive = (
        z1.new_empty(shape, dtype=torch.float32) for shape in ((2 * n, dim), (2 * n,), (n,))
    )
    tensors = {"z1": z1.contiguous(), "z2": z2.contiguous(), "rows": rows}
    tensors |= {"lengths": lengths, "positive": positive}
    plan_rows("normalise", n, dim, tensors, {}, capability(z1)).run()
    return Unit(rows, lengths, positive)


def anchors(lse: Tensor, unit: Unit, temperature: Tensor, function: str) -> tuple[Tensor, Tensor]:
    """The mean of f(x), 0-d, and its slope to each x, as `lse`: (N,), or (2N,) for both views."""
    mean, weights = lse.new_empty(()), torch.empty_like(lse)
    n = len(unit.positive)
    tensors = {"lse": lse, "positive": unit.positive, "temperature": temperature}
    tensors |= {"mean": mean, "weights": weights}
    constants = {"FUNCTION": function, "SYMMETRIC": len(lse) > n}
    plan_rows("anchors", n, 0, tensors, constants, capability(lse)).run()
    return mean, weights


def projected(
    pulls: Tensor,
    unit: Unit,
    weights: Tensor,
    temperature: Tensor,
    grad: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """(2N, D) gradient to the views in their `dtype`; see `triton_rows.project`.

    Args:
        pulls: (2N, D) gradient of the logsumexps to the unit rows; may be overwritten.
        unit: of `normalised`.
        weights: of `anchors`.
        temperature: 0-d.
        grad: 0-d gradient to the mean.
        dtype: of the views.
    """
    n, dim = len(unit.positive), unit.rows.shape[1]
    out = pulls if dtype == pulls.dtype else torch.empty_like(pulls, dtype=dtype)
    tensors = {"pulls": pulls, "rows": unit.rows, "lengths": unit.lengths, "weights": weights}
    tensors |= {"temperature": temperature, "grad": grad, "out": out}
    constants = {"SYMMETRIC": len(weights) > n}
    plan_rows("project", n, dim, tensors, constants, capability(pulls)).run()
    return out


def plan_rows(
    kernel: RowKernel,
    n: int,
    dim: int,
    tensors: dict[str, Tensor],
    constants: dict[str, Any],
    sm: int,
) -> Launch:
    """The launch of a row kernel for `n` pairs of rows of `dim` components; 0 for the anchors.

    `tensors`: its arguments, contiguous; `constants`: those of its own; `sm`: compute capability.
    """
    tile = rowwise(dim)
    grid = (triton.cdiv(n, tile.bm) if dim else 1,)
    constants = {**constants, "BM": tile.bm}
    if dim:
        constants |= {"D": dim, "BD": tile.bd}
    return Launch(kernel, grid, {**tensors, "n": n}, constants, tile, sm)
