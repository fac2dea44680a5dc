"""A value whose derivatives are written down, in place of autograd through its formula.

The part of a loss that has one number per anchor is known in closed form, and so is its gradient:
one product per input in the backward pass, instead of several operations for each of the formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["known"]


def known(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """(n,) `value` as a function of tensors that need a gradient.

    Args:
        value: (n,), detached.
        slopes: the inputs, (n,) or scalar, each with the derivative of the value to it, (n,) or
            scalar, detached.
    """
    inputs, derivatives = zip(*slopes, strict=True)
    return _Known.apply(value, *inputs, *derivatives)


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *both: Tensor) -> Tensor:
        count = len(both) // 2
        ctx.scalars = [one.ndim == 0 for one in both[:count]]
        ctx.save_for_backward(*both[count:])
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = [None]
        needed = ctx.needs_input_grad[1 : 1 + len(ctx.scalars)]
        for slope, scalar, wanted in zip(ctx.saved_tensors, ctx.scalars, needed, strict=True):
            part = grad * slope if wanted else None
            found.append(part.sum() if part is not None and scalar else part)
        return *found, *[None] * len(ctx.scalars)
