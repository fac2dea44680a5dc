"""Small batches on the CPU, two views with temperatures of their own: one matrix for both ways.

With one τ per anchor the logits of the two directions differ, s_ij/τ_i and s_ij/σ_j, and so do
their softmaxes P and Q; the similarities are the same. The gradient to s is one matrix too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels.interface import Exclusions, refuse_double_backward
from macl.losses.kernels.tiles import Tile


def logsumexp_and_mean_both_ways(
    rows: Tensor, columns: Tensor, by_row: Tensor, by_column: Tensor, exclude: Exclusions
) -> tuple[Tensor, Tensor]:
    """(n + m,) logsumexp and (n + m,) Σ P̂·l, detached, by row and then by column.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors.
        by_row: (n,) τ of each row, against all columns.
        by_column: (m,) τ of each column, against all rows.
        exclude: pairs that do not count, in either direction.
    """
    return _BothWays.apply(rows, columns, by_row, by_column, exclude)


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        by_row: Tensor,
        by_column: Tensor,
        exclude: Exclusions,
    ) -> tuple[Tensor, Tensor]:
        s = rows @ columns.T
        p = s / by_row[:, None]
        q = s / by_column
        lse, mean = [], []
        for logits, temperature, dim in ((p, by_row, 1), (q, by_column, 0)):
            exclude.apply(logits, Tile(0, len(rows), 0, len(columns)), -math.inf)
            peak = logits.amax(dim, keepdim=True).nan_to_num_(math.nan, math.inf, 0.0)
            total = logits.sub_(peak).exp_().sum(dim, keepdim=True)
            logits.div_(total.clamp(min=torch.finfo(total.dtype).tiny))
            lse.append(total.log_().add_(peak).squeeze(dim))
            mean.append((logits * s).sum(dim).div_(temperature))
        means = torch.cat(mean)
        ctx.save_for_backward(rows, columns, by_row, by_column, p, q, means)
        ctx.mark_non_differentiable(means)
        return torch.cat(lse), means

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """dl/ds = 1/τ, and d lse/dτ = −(Σ P̂·l)/τ."""
        refuse_double_backward()
        rows, columns, by_row, by_column, p, q, means = ctx.saved_tensors
        n = len(rows)
        u, v = grad[:n] / by_row, grad[n:] / by_column
        weights = torch.addcmul(p * u[:, None], q, v)
        d_by_row = -u * means[:n] if ctx.needs_input_grad[2] else None
        d_by_column = -v * means[n:] if ctx.needs_input_grad[3] else None
        return weights @ columns, weights.T @ rows, d_by_row, d_by_column, None
