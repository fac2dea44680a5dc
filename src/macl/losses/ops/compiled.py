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
from macl.losses.ops.tiled import Operands, Plan, Values, temperature_grad, wide

_MASKS = 10
"""Tensors that describe exclusions, each of which may be absent; they come first."""
_PLAN = (
    ", ".join(f"Tensor? mask{k}" for k in range(_MASKS))
    + ", SymInt[] diagonals, bool only_classes, str direction, str map, float[] parameters, "
    "bool statistics, str function, str kernel"
)
_OPERANDS = "Tensor rows, Tensor columns, Tensor? scale, Tensor? offset"
_TENSORS = 4 + _MASKS


def reduced(given: Operands, plan: Plan) -> Values:
    """See `operator.logsumexp` and `pair_sum`."""
    lse, mean, square = _reduce(*given, *parts_of(plan))
    return Values(lse, mean, square) if plan.statistics else Values(lse)


def parts_of(plan: Plan) -> tuple[Any, ...]:
    """The plan as arguments of an operator."""
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
    return Plan(exclude, direction, rebuilt, statistics, function, kernel or None)


@torch.library.custom_op(
    "macl::reduce", mutates_args=(), schema=f"({_OPERANDS}, {_PLAN}) -> (Tensor, Tensor, Tensor)"
)
def _reduce(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    (lse, mean, square, _), *_ = operator.values(Operands(*arguments[:4]), _plan(arguments[4:]))
    if mean is None or square is None:
        return lse, lse.new_empty(0), lse.new_empty(0)
    return lse, mean, square.clone()  # both are parts of one tensor; results must not share memory


@_reduce.register_fake
def _(rows: Tensor, columns: Tensor, scale: Any, offset: Any, *parts: Any) -> Any:
    like, plan = wide(rows), _plan(parts)
    count = len(rows) + (len(columns) if plan.direction == "both" else 0)
    extra = count if plan.statistics else 0
    return like.new_empty(count), like.new_empty(extra), like.new_empty(extra)


@torch.library.custom_op(
    "macl::reduce_grad",
    mutates_args=(),
    schema=f"(Tensor lse, Tensor grad, bool columns_too, {_OPERANDS}, {_PLAN})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def _reduce_grad(
    lse: Tensor, grad: Tensor, columns_too: bool, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given, plan = Operands(*arguments[:4]), _plan(arguments[4:])
    parts = operator.gradients(given, plan, lse, grad, columns_too)
    filled = [*parts, None, None][:4]
    return tuple(lse.new_empty(0) if x is None else x for x in filled)  # type: ignore[return-value]


@_reduce_grad.register_fake
def _(
    lse: Tensor, grad: Tensor, columns_too: bool, rows: Tensor, columns: Tensor,
    scale: Any, offset: Any, *parts: Any,
) -> Any:  # fmt: skip
    like, sums = wide(rows), bool(_plan(parts).function)
    d_columns = torch.empty_like(wide(columns)) if columns_too else like.new_empty(0)
    shapes = [x.shape if sums else (0,) for x in (scale, offset)]
    return torch.empty_like(like), d_columns, *map(like.new_empty, shapes)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], output[0])
    ctx.rest = inputs[_TENSORS:]


def _backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
    *tensors, lse = ctx.saved_tensors
    rows, scale, (_, _, direction, _, _, _, function, _) = tensors[0], tensors[2], ctx.rest
    columns_too = bool(function) or (bool(ctx.needs_input_grad[1]) and direction != "mirror")
    parts = _reduce_grad(lse, grad, columns_too, *tensors, *ctx.rest)
    if not function:
        d_scale = None
        if ctx.needs_input_grad[2]:
            d_scale = temperature_grad(rows, parts[0], scale, direction == "mirror")
        parts = (parts[0], parts[1] if columns_too else None, d_scale, None)
    return *parts, *[None] * (_MASKS + len(ctx.rest))


_reduce.register_autograd(_backward, setup_context=_setup)
