"""The streamed operator as steps of the autograd graph, for eager mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels import cpu, dispatch, select
from macl.losses.kernels.interface import Direction, Exclusions, Plan, refuse_double_backward

Gradients = tuple[Tensor | None, ...]


class Fused(torch.autograd.Function):
    """The CPU loop with what it keeps between its passes: for one scalar τ within bounds.

    logsumexp, less the positives on diagonals, by row and (direction "both") by column.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        temperature: Tensor,
        exclude: Exclusions,
        positives: tuple[int, ...],
        direction: Direction,
    ) -> tuple[Tensor, Tensor | None]:
        """Values, and what the backward pass needs."""
        needs_rows, needs_columns, needs_tau = ctx.needs_input_grad[:3]
        rows_only = direction == "rows" and not (needs_columns or positives)
        pulls = rows_only and (needs_rows or needs_tau)
        keep = not rows_only and (needs_rows or needs_columns or needs_tau)
        tau = float(temperature)
        sums = cpu.stream(rows, columns, tau, exclude, positives, direction, keep, pulls)
        # Where the rows' gradient is ready the columns are not needed again: they may change.
        ctx.save_for_backward(rows, None if rows_only else columns, temperature)
        ctx.exclude, ctx.positives, ctx.direction, ctx.sums = exclude, positives, direction, sums
        by_row, by_column = sums.by_row.log(), None
        if direction == "both":
            by_column = sums.by_column.log()
        if sums.positive is not None:
            by_row -= sums.positive
            if by_column is not None:
                by_column -= sums.positive
        return by_row, by_column

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_columns: Tensor | None) -> Gradients:
        """Gradients to the tensors."""
        refuse_double_backward()
        rows, columns, temperature = ctx.saved_tensors
        sums, mirror = ctx.sums, ctx.direction == "mirror"
        tau = float(temperature)
        u = cpu.weights(grad, sums.by_row, tau)
        d_columns = None
        if sums.pulls is not None:
            d_rows = sums.pulls * u[:, None]
        else:
            v = u if mirror else None
            if ctx.direction == "both":
                if grad_columns is None:
                    grad_columns = torch.zeros_like(sums.by_column)
                v = cpu.weights(grad_columns, sums.by_column, tau)
            wants_columns = ctx.needs_input_grad[1] and not mirror
            d_rows, d_columns = cpu.pull(
                rows, columns, tau, ctx.exclude, ctx.positives, sums, u, v, wants_columns, mirror
            )
        d_temperature = None
        if ctx.needs_input_grad[2]:
            plan = Plan(ctx.exclude, ctx.direction)
            d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, plan)
        return d_rows, d_columns, d_temperature, None, None, None


class Streamed(torch.autograd.Function):
    """logsumexp by row and (direction "both") by column, less `plan.positives`.

    With `plan.apart` the positives' logits are the third result, with `plan.mean` the mean logits
    the fourth, which is not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, temperature: Tensor | None, plan: Plan
    ) -> dispatch.Values:
        """Values, and what the backward pass needs."""
        found = dispatch.values(rows, columns, temperature, plan)
        by_row, by_column, positive, mean = found
        needs_rows, needs_columns, needs_tau = ctx.needs_input_grad[:3]
        direct = plan.direction == "rows" and not (needs_columns or plan.apart)
        ctx.plan, ctx.direct = plan, direct
        if mean is not None:
            ctx.mark_non_differentiable(mean)
        if not ctx.direct:
            ctx.save_for_backward(rows, columns, temperature, by_row, by_column)
        elif needs_rows or needs_tau:
            # dlse/dr, (n, D), now: the columns are not needed again and may change.
            ones = torch.ones_like(by_row)
            slope, _ = dispatch.gradients(
                rows, columns, temperature, plan, (ones, by_row), None, False
            )
            ctx.save_for_backward(rows, slope, temperature)
        if positive is None or plan.apart:
            return found
        by_column = None if by_column is None else by_column - positive
        return dispatch.Values(by_row - positive, by_column, None, mean)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, grad_columns: Tensor | None, grad_positive: Tensor | None, _: Any
    ) -> Gradients:
        """Gradients to the tensors."""
        refuse_double_backward()
        d_columns = None
        if ctx.direct:
            rows, slope, temperature = ctx.saved_tensors
            d_rows = slope * grad[:, None].to(slope.dtype)
        else:
            rows, columns, temperature, row_lse, column_lse = ctx.saved_tensors
            by_column = None
            if column_lse is not None:
                if grad_columns is None:
                    grad_columns = torch.zeros_like(column_lse)
                by_column = (grad_columns, column_lse)
            d_rows, d_columns = dispatch.gradients(
                rows, columns, temperature, ctx.plan, (grad, row_lse), by_column,
                ctx.needs_input_grad[1], grad_positive if ctx.plan.apart else None,
            )  # fmt: skip
        d_temperature = None
        if ctx.needs_input_grad[2]:
            d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, ctx.plan)
        return d_rows, d_columns, d_temperature, None


class PairSum(torch.autograd.Function):
    """Σ_j f(offset_i + scale·r_i·c_j) over the pairs that count."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        offset: Tensor,
        exclude: Exclusions,
        function: str,
        kernel: str | None,
    ) -> Tensor:
        """Values, and what the backward pass needs."""
        ctx.save_for_backward(rows, columns, scale, offset)
        ctx.exclude, ctx.function, ctx.kernel = exclude, function, kernel
        backend = select.backend(rows, kernel, None, function)
        return backend.pair_sum(rows, columns, scale, offset, exclude, function)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """Gradients to the tensors."""
        refuse_double_backward()
        inputs = ctx.saved_tensors
        backend = select.backend(inputs[0], ctx.kernel, None, ctx.function)
        found = backend.pair_sum_grad(*inputs, ctx.exclude, grad, ctx.function)
        typed = (part.to(own.dtype) for part, own in zip(found, inputs, strict=True))
        return *typed, None, None, None
