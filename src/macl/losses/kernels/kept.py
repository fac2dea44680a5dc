"""Small batches on the CPU: the softmax of the forward pass is kept for the backward pass.

Up to `tiles.KEEP` similarities, 16 MB in float32, one matrix is held instead of computed again:
for logsumexps that the loop of `cpu` does not take (one τ per row, maps, small τ) and pair sums.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels import dispatch, select, tiles
from macl.losses.kernels.functions import FUNCTIONS
from macl.losses.kernels.interface import Exclusions, Plan, refuse_double_backward
from macl.losses.kernels.tiles import Tile

Gradients = tuple[Tensor | None, ...]


def keeps(rows: Tensor, columns: Tensor, kernel: str | None) -> bool:
    """Whether this many similarities are kept; only where the columns need a gradient.

    Otherwise they may change before the backward pass, which reads them here.
    """
    few = tiles.KEEP * max(1.0, rows.shape[1] / 128)
    return (
        0 < len(rows) * len(columns) <= few
        and columns.requires_grad
        and torch.is_grad_enabled()
        and rows.device.type == "cpu"
        and rows.dtype in (torch.float32, torch.float64)
        and columns.dtype == rows.dtype
        and select.selected(rows.device, kernel) == "cpu"
    )


class Kept(torch.autograd.Function):
    """logsumexp by row, and by column for the direction "both"; see `autograd.Streamed`.

    With `mean` also Σ_j P̂_ij·l_ij by row, not differentiable, for logits s/τ.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        temperature: Tensor | None,
        plan: Plan,
        mean: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Values, and P = e^{l − lse}·dl/ds by row (and by column)."""
        logits, slope = _over(rows, temperature) @ columns.T, None
        if plan.map is not None:
            logits, slope = plan.map.value_and_derivative(logits)
        plan.exclude.apply(logits, Tile(0, len(rows), 0, len(columns)), -math.inf)
        by_column = in_columns = None
        if plan.direction == "both":
            by_column, in_columns = _softmax(logits.clone(), 0, slope)
        by_row, in_rows = _softmax(logits, 1, slope)
        pull = mean_logit = None
        if mean:
            pull = in_rows @ columns
            mean_logit = _over((rows * pull).sum(1, keepdim=True), temperature)[:, 0]
            ctx.mark_non_differentiable(mean_logit)
        ctx.plan = plan
        ctx.save_for_backward(rows, columns, temperature, in_rows, in_columns, pull)
        return by_row, by_column, mean_logit

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_columns: Tensor | None, _: Any) -> Gradients:
        """Weights go to the thin side of each product: no further n×m matrix is made."""
        refuse_double_backward()
        rows, columns, temperature, in_rows, in_columns, pull = ctx.saved_tensors
        weighted = _over(rows * grad[:, None], temperature)
        d_rows = (in_rows @ columns if pull is None else pull) * grad[:, None]
        d_columns = in_rows.T @ weighted
        if in_columns is not None and grad_columns is not None:
            d_rows += in_columns @ (columns * grad_columns[:, None])
            d_columns += _over((in_columns.T @ rows).mul_(grad_columns[:, None]), temperature)
        d_rows = _over(d_rows, temperature)
        if ctx.plan.direction == "mirror":
            d_rows, d_columns = d_rows.add_(d_columns), None
        d_temperature = None
        if temperature is not None and ctx.needs_input_grad[2]:
            d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, ctx.plan)
        return d_rows, d_columns, d_temperature, None, None


class KeptPairSum(torch.autograd.Function):
    """Σ_j f(offset_i + scale·r_i·c_j); see `autograd.PairSum`."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        offset: Tensor,
        exclude: Exclusions,
        function: str,
    ) -> Tensor:
        """Values, and f' of every pair."""
        whole = Tile(0, len(rows), 0, len(columns))
        x = torch.addmm(_column(offset.to(rows.dtype)), rows * scale.to(rows.dtype), columns.T)
        slopes = FUNCTIONS[function].derivative(x)
        values = FUNCTIONS[function].value(x)
        for part in (values, slopes):
            exclude.apply(part, whole, 0.0)
        ctx.save_for_backward(rows, columns, scale, offset, slopes)
        return values.sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """As `torch_tiles.pair_sum_grad`, from the slopes that were kept."""
        refuse_double_backward()
        rows, columns, scale, offset, slopes = ctx.saved_tensors
        weighted, factor = rows * grad[:, None], scale.to(rows.dtype)
        pull = (slopes @ columns).mul_(grad[:, None])
        d_scale = d_offset = None
        if ctx.needs_input_grad[2]:
            d_scale = (rows * pull).sum().to(scale.dtype)
        if ctx.needs_input_grad[3]:
            d_offset = slopes.sum(1).mul_(grad)
            d_offset = (d_offset if offset.ndim else d_offset.sum()).to(offset.dtype)
        return pull * factor, (slopes.T @ weighted) * factor, d_scale, d_offset, None, None


def _softmax(logits: Tensor, dim: int, slope: Tensor | None) -> tuple[Tensor, Tensor]:
    """logsumexp along `dim`, and the softmax times the slope, in the place of `logits`."""
    peak = logits.amax(dim, keepdim=True).nan_to_num_(math.nan, math.inf, 0.0)
    total = logits.sub_(peak).exp_().sum(dim, keepdim=True)
    logits.div_(total.clamp(min=torch.finfo(total.dtype).tiny))
    lse = total.log().add_(peak).squeeze(dim)
    return lse, logits if slope is None else logits.mul_(slope)


def _column(value: Tensor) -> Tensor:
    return value[:, None] if value.ndim else value


def _over(rows: Tensor, temperature: Tensor | None) -> Tensor:
    """rows/τ; the rows themselves with a map."""
    return rows if temperature is None else rows / _column(temperature.to(rows.dtype))
