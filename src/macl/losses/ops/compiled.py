"""The operator for torch.compile: `torch.library` operators that are opaque to it.

Operators take tensors and numbers only, so a plan is taken apart here and put together again
inside. The implementation is selected when the compiled program runs; the backward pass computes
similarities again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl.losses.ops import operator
from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.maps import LogitMap
from macl.losses.ops.tiled import Plan, Values, temperature_grad, wide

_MASKS = 10
"""Tensors that describe exclusions, each of which may be absent; they come first."""
_PLAN = (
    ", ".join(f"Tensor? mask{k}" for k in range(_MASKS))
    + ", SymInt[] diagonals, bool only_classes, str direction, str map, float[] parameters, "
    "bool statistics, str function, str kernel"
)
_OPERANDS = "Tensor rows, Tensor columns, Tensor? temperature"
_LSE = f"({_OPERANDS}, {_PLAN}) -> (Tensor, Tensor, Tensor)"
_LSE_GRAD = f"({_OPERANDS}, Tensor lse, Tensor grad, bool columns_too, {_PLAN}) -> (Tensor, Tensor)"
_PAIRS = "Tensor rows, Tensor columns, Tensor scale, Tensor offset"
_SUM = f"({_PAIRS}, {_PLAN}) -> Tensor"
_SUM_GRAD = f"({_PAIRS}, Tensor weight, {_PLAN}) -> (Tensor, Tensor, Tensor, Tensor)"


def logsumexp(
    rows: Tensor, columns: Tensor | None, temperature: Tensor | None, plan: Plan
) -> Values:
    """See `operator.logsumexp`; the positives' logits are left to the caller."""
    keys = rows if columns is None else columns
    lse, mean, square = _lse(rows, keys, temperature, *parts_of(plan))
    return Values(lse, None, mean, square) if plan.statistics else Values(lse)


def pair_sum(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, plan: Plan) -> Tensor:
    """(n,), see `operator.pair_sum`."""
    return _sum(rows, columns, scale, offset, *parts_of(plan))


def parts_of(plan: Plan) -> tuple[Any, ...]:
    """The plan as arguments of an operator; positives are read elsewhere."""
    map = plan.map
    return (
        *plan.exclude.tensors(), list(plan.exclude.diagonals), plan.exclude.only_classes,
        plan.direction, "" if map is None else map.name, [] if map is None else map.parameters(),
        plan.statistics, plan.function, plan.kernel or "",
    )  # fmt: skip


def _plan(parts: tuple[Any, ...]) -> Plan:
    masks, rest = parts[:_MASKS], parts[_MASKS:]
    diagonals, only, direction, map, parameters, statistics, function, kernel = rest
    exclude = Exclusions.rebuild(diagonals, only, masks)
    rebuilt = LogitMap.known[map](*parameters) if map else None
    return Plan(exclude, direction, rebuilt, (), statistics, function, kernel or None)


@torch.library.custom_op("macl::lse", mutates_args=(), schema=_LSE)
def _lse(
    rows: Tensor, columns: Tensor, temperature: Tensor | None, *parts: Any
) -> tuple[Tensor, Tensor, Tensor]:
    (lse, _, mean, square), _ = operator.values(rows, columns, temperature, _plan(parts))
    nothing = lse.new_empty(0)
    if mean is None or square is None:
        return lse, nothing, nothing.clone()
    return lse, mean, square.clone()  # both are parts of one tensor; results must not share memory


@_lse.register_fake
def _(rows: Tensor, columns: Tensor, temperature: Tensor | None, *parts: Any) -> Any:
    like, plan = wide(rows), _plan(parts)
    count = len(rows) + (len(columns) if plan.direction == "both" else 0)
    extra = count if plan.statistics else 0
    return like.new_empty(count), like.new_empty(extra), like.new_empty(extra)


@torch.library.custom_op("macl::lse_grad", mutates_args=(), schema=_LSE_GRAD)
def _lse_grad(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    lse: Tensor,
    grad: Tensor,
    columns_too: bool,
    *parts: Any,
) -> tuple[Tensor, Tensor]:
    d_rows, d_columns = operator.gradients(
        rows, columns, temperature, _plan(parts), lse, grad, None, columns_too
    )
    return d_rows, d_rows.new_empty(0) if d_columns is None else d_columns


@_lse_grad.register_fake
def _(rows: Tensor, columns: Tensor, *rest: Any) -> Any:
    d_rows, columns_too = torch.empty_like(wide(rows)), rest[3]
    return d_rows, torch.empty_like(wide(columns)) if columns_too else d_rows.new_empty(0)


@torch.library.custom_op("macl::pair_sum", mutates_args=(), schema=_SUM)
def _sum(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, *parts: Any) -> Tensor:
    return operator.pair_values(rows, columns, scale, offset, _plan(parts))


@_sum.register_fake
def _(rows: Tensor, *rest: Any) -> Any:
    return wide(rows).new_empty(len(rows))


@torch.library.custom_op("macl::pair_sum_grad", mutates_args=(), schema=_SUM_GRAD)
def _sum_grad(
    rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, weight: Tensor, *parts: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return operator.pair_gradients(rows, columns, scale, offset, _plan(parts), weight)  # type: ignore[return-value]


@_sum_grad.register_fake
def _(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, *rest: Any) -> Any:
    like = wide(rows)
    both = torch.empty_like(like), torch.empty_like(wide(columns))
    return *both, like.new_empty(scale.shape), like.new_empty(offset.shape)


def _lse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[: 3 + _MASKS], output[0])
    ctx.rest = inputs[3 + _MASKS :]


def _lse_backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
    rows, columns, temperature, *masks, lse = ctx.saved_tensors
    direction = ctx.rest[2]
    columns_too = bool(ctx.needs_input_grad[1]) and direction != "mirror"
    d_rows, d_columns = _lse_grad(
        rows, columns, temperature, lse, grad, columns_too, *masks, *ctx.rest
    )
    d_temperature = None
    if ctx.needs_input_grad[2]:
        d_temperature = temperature_grad(rows, d_rows, temperature, direction == "mirror")
    d_columns = d_columns.to(columns.dtype) if columns_too else None
    nothing = [None] * (_MASKS + len(ctx.rest))
    return d_rows.to(rows.dtype), d_columns, d_temperature, *nothing


def _sum_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[: 4 + _MASKS])
    ctx.rest = inputs[4 + _MASKS :]


def _sum_backward(ctx: Any, grad: Tensor) -> Any:
    tensors, masks = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    parts = _sum_grad(*tensors, grad, *masks, *ctx.rest)
    typed = [part.to(own.dtype) for part, own in zip(parts, tensors, strict=True)]
    return *typed, *[None] * (_MASKS + len(ctx.rest))


_lse.register_autograd(_lse_backward, setup_context=_lse_setup)
_sum.register_autograd(_sum_backward, setup_context=_sum_setup)
