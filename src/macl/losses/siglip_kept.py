"""SigLIP of a small batch on the CPU: positives and negatives from one matrix that is kept.

With x_ij = t·s_ij + b, turned round to −x on the diagonal, the loss of a row is Σ_j softplus(x_ij)
and its slopes are σ(x_ij), negative on the diagonal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels import kept
from macl.losses.kernels.functions import softplus
from macl.losses.kernels.interface import refuse_double_backward
from macl.losses.pairs import Pairs


def per_anchor(pairs: Pairs, scale: Tensor, bias: Tensor) -> Tensor | None:
    """(n,) the loss of each row of the first view; None where the batch is no square matrix here.

    Args:
        pairs: who is contrasted with whom.
        scale: scalar t.
        bias: scalar b.
    """
    if torch.compiler.is_compiling() or not pairs.complete:
        return None
    sides = pairs.sides()
    if [*map(len, sides)] != [1]:
        return None
    rows, columns, exclude, ring = sides[0][0]
    plain = ring is None and exclude.diagonals == (0,) and rows.shape == columns.shape
    if not (plain and kept.keeps(rows, columns, pairs.kernel)):
        return None
    return _Whole.apply(rows, columns, scale, bias)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        x = torch.addmm(bias, rows * scale, columns.T)
        x.diagonal().neg_()
        values = softplus(x).sum(1)
        slopes = x.sigmoid_()
        slopes.diagonal().neg_()
        ctx.save_for_backward(rows, columns, scale, slopes)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The weight of a row goes to the thin side of each product."""
        refuse_double_backward()
        rows, columns, scale, slopes = ctx.saved_tensors
        weighted, pull = rows * grad[:, None], slopes @ columns
        d_scale = (weighted * pull).sum() if ctx.needs_input_grad[2] else None
        d_bias = torch.dot(slopes.sum(1), grad) if ctx.needs_input_grad[3] else None
        d_rows = pull.mul_((grad * scale)[:, None])
        return d_rows, (slopes.T @ weighted).mul_(scale), d_scale, d_bias
