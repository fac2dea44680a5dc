"""The streamed operator for torch.compile: `torch.library` operators that are opaque to it.

Operators take tensors and numbers only, so exclusions and maps are taken apart here and put
together again inside. The implementation is selected when the compiled program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels import dispatch, select
from macl.losses.kernels.interface import Exclusions, LogitMap, Plan, wide

_PAIRS = "SymInt[] diagonals, Tensor? row_groups, Tensor? column_groups, bool only_groups"
_PLAN = f"{_PAIRS}, str direction, str map, float[] parameters, str kernel"
_LSE = f"(Tensor rows, Tensor columns, Tensor? temperature, {_PLAN}) -> (Tensor, Tensor)"
_LSE_GRAD = (
    "(Tensor rows, Tensor columns, Tensor? temperature, Tensor grad, Tensor lse, "
    f"Tensor column_grad, Tensor column_lse, bool columns_too, {_PLAN}) -> (Tensor, Tensor)"
)
_SUM = (
    "(Tensor rows, Tensor columns, Tensor scale, Tensor offset, "
    f"{_PAIRS}, str function, str kernel) -> Tensor"
)
_SUM_GRAD = (
    "(Tensor rows, Tensor columns, Tensor scale, Tensor offset, Tensor weight, "
    f"{_PAIRS}, str function, str kernel) -> (Tensor, Tensor, Tensor, Tensor)"
)


def logsumexp(
    rows: Tensor, columns: Tensor, temperature: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor | None]:
    """(n,) by row and, for the direction "both", (m,) by column."""
    exclude, map = plan.exclude, plan.map
    by_row, by_column = _lse(
        rows, columns, temperature, *_parts(exclude), plan.direction,
        "" if map is None else map.name, [] if map is None else map.parameters(),
        plan.kernel or "",
    )  # fmt: skip
    return by_row, by_column if plan.direction == "both" else None


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    function: str,
    kernel: str | None,
) -> Tensor:
    """(n,), see `operator.pair_sum`."""
    return _sum(rows, columns, scale, offset, *_parts(exclude), function, kernel or "")


def _parts(exclude: Exclusions) -> tuple[list[int], Tensor | None, Tensor | None, bool]:
    groups = exclude.row_groups, exclude.column_groups
    return list(exclude.diagonals), *groups, exclude.only_groups


def _plan(
    diagonals: Sequence[int],
    row_groups: Tensor | None,
    column_groups: Tensor | None,
    only_groups: bool,
    direction: Any,
    map: str,
    parameters: Sequence[float],
    kernel: str,
) -> Plan:
    exclude = Exclusions(tuple(diagonals), row_groups, column_groups, only_groups)
    return Plan(exclude, direction, LogitMap.known[map](*parameters) if map else None, kernel)


@torch.library.custom_op("macl::lse", mutates_args=(), schema=_LSE)
def _lse(
    rows: Tensor, columns: Tensor, temperature: Tensor | None, *plan: Any
) -> tuple[Tensor, Tensor]:
    by_row, by_column, *_ = dispatch.values(rows, columns, temperature, _plan(*plan))
    return by_row, by_row.new_empty(0) if by_column is None else by_column


@_lse.register_fake
def _(rows: Tensor, columns: Tensor, temperature: Tensor | None, *plan: Any) -> Any:
    like = wide(rows)
    both = plan[4] == "both"
    return like.new_empty(len(rows)), like.new_empty(len(columns) if both else 0)


@torch.library.custom_op("macl::lse_grad", mutates_args=(), schema=_LSE_GRAD)
def _lse_grad(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    grad: Tensor,
    lse: Tensor,
    column_grad: Tensor,
    column_lse: Tensor,
    columns_too: bool,
    *plan: Any,
) -> tuple[Tensor, Tensor]:
    whole = _plan(*plan)
    by_column = (column_grad, column_lse) if whole.direction == "both" else None
    d_rows, d_columns = dispatch.gradients(
        rows, columns, temperature, whole, (grad, lse), by_column, columns_too
    )
    return d_rows, d_rows.new_empty(0) if d_columns is None else d_columns


@_lse_grad.register_fake
def _(rows: Tensor, columns: Tensor, *rest: Any) -> Any:
    d_rows = torch.empty_like(wide(rows))
    columns_too = rest[5]
    return d_rows, torch.empty_like(wide(columns)) if columns_too else d_rows.new_empty(0)


@torch.library.custom_op("macl::pair_sum", mutates_args=(), schema=_SUM)
def _sum(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, *rest: Any) -> Tensor:
    *parts, function, kernel = rest
    backend = select.backend(rows, kernel, None, function)
    return backend.pair_sum(rows, columns, scale, offset, Exclusions(*parts), function)


@_sum.register_fake
def _(rows: Tensor, *rest: Any) -> Any:
    return wide(rows).new_empty(len(rows))


@torch.library.custom_op("macl::pair_sum_grad", mutates_args=(), schema=_SUM_GRAD)
def _sum_grad(
    rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *parts, function, kernel = rest
    backend = select.backend(rows, kernel, None, function)
    return backend.pair_sum_grad(rows, columns, scale, offset, Exclusions(*parts), weight, function)


@_sum_grad.register_fake
def _(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, *rest: Any) -> Any:
    like = wide(rows)
    return (
        torch.empty_like(like), torch.empty_like(wide(columns)),
        like.new_empty(()), like.new_empty(offset.shape),
    )  # fmt: skip


def _lse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rows, columns, temperature, diagonals, row_groups, column_groups, *rest = inputs
    ctx.save_for_backward(rows, columns, temperature, row_groups, column_groups, *output)
    ctx.diagonals, ctx.rest = diagonals, rest


def _lse_backward(ctx: Any, grad: Tensor, column_grad: Tensor) -> Any:
    rows, columns, temperature, row_groups, column_groups, lse, column_lse = ctx.saved_tensors
    plan = (ctx.diagonals, row_groups, column_groups, *ctx.rest)
    direction = ctx.rest[1]
    columns_too = bool(ctx.needs_input_grad[1]) and direction != "mirror"
    d_rows, d_columns = _lse_grad(
        rows, columns, temperature, grad, lse, column_grad, column_lse, columns_too, *plan
    )
    d_temperature = None
    if ctx.needs_input_grad[2]:
        whole = Plan(Exclusions(), direction)
        d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, whole)
    d_columns = d_columns.to(columns.dtype) if columns_too else None
    return d_rows.to(rows.dtype), d_columns, d_temperature, *[None] * 8


def _sum_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, diagonals, row_groups, column_groups, only_groups, function, kernel = inputs
    ctx.save_for_backward(*tensors, row_groups, column_groups)
    ctx.rest = diagonals, only_groups, function, kernel


def _sum_backward(ctx: Any, grad: Tensor) -> Any:
    *tensors, row_groups, column_groups = ctx.saved_tensors
    diagonals, *rest = ctx.rest
    found = _sum_grad(*tensors, grad, diagonals, row_groups, column_groups, *rest)
    typed = [part.to(own.dtype) for part, own in zip(found, tensors, strict=True)]
    return *typed, *[None] * 6


_lse.register_autograd(_lse_backward, setup_context=_lse_setup)
_sum.register_autograd(_sum_backward, setup_context=_sum_setup)
