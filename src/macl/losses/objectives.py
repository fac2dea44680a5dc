"""The family: each loss as a function f of the margin x = logsumexp(negatives/τ) − positive/τ.

With P = σ(−x) the probability of the positive and W = σ(x) the gradient scale of the paper,

    name             f(x)                   f'(x)    objective
    softplus         log(1 + eˣ) = −log P   W        InfoNCE, NT-Xent, SupCon, SigLIP
    identity         x                      1        DCL
    one              exp(x − sg x) = 1      1        FlatNCE
    nll_over_scale   softplus(x)/sg W       1        MACL's second half (Eq. 11 of the paper)

A new objective is one entry of `FUNCTIONS` and one class in `macl.losses.family`. Everything that
needs f (a margin per anchor, sums over pairs, every device) takes it from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PairFunction(NamedTuple):
    """f and f', elementwise."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] = torch.ones_like


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ), exact in double precision too."""
    # torch's default gives up the logarithm at 20, where it still counts in double precision.
    return F.softplus(x, threshold=50)


def nll_over_gradient_scale(x: Tensor) -> Tensor:
    """softplus(x)/σ(x), which tends to 1 as x → −∞ and to x as x → ∞.

    The ratio is 1 + eˣ/2 − e²ˣ/6 + …. Below −80 it is 1 and both parts are about to underflow.
    """
    near = x.clamp(min=-80.0)
    return softplus(near) / torch.sigmoid(near)


FUNCTIONS = {
    "softplus": PairFunction(softplus, torch.sigmoid),
    "identity": PairFunction(torch.clone),
    "nll_over_scale": PairFunction(nll_over_gradient_scale),
    "one": PairFunction(lambda x: torch.exp(x - x)),
}


def objective(function: str, x: Tensor, complete: bool = False) -> Tensor:
    """(n,) f(x) with the gradient f'(x), finite for every finite x.

    An anchor without any negative has x = −∞: there is nothing to contrast, so its loss and its
    gradient are 0. With `complete` there is none such, and none is looked for.
    """
    return _Objective.apply(x, function, complete)


class _Objective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: str, complete: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.complete = function, complete
        value = FUNCTIONS[function].value(x)
        return value if complete else value.masked_fill(x.isneginf(), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        slope = FUNCTIONS[ctx.function].derivative(x)
        if not ctx.complete:
            slope = slope.masked_fill(x.isneginf(), 0.0)
        return grad * slope, None, None


def dual(x: Tensor, x_beta: Tensor, complete: bool = False) -> Tensor:
    """(n,) dual temperature, Zhang et al. 2022: sg[W(τ_β)/W(τ)]·softplus(x).

    The ratio overflows for easy positives while softplus(x)/W(τ) → 1, so value and gradient are
    those of W(τ_β)·[softplus(x)/sg W(τ)], W(τ_β)·∇x.
    """
    return torch.sigmoid(x_beta.detach()) * objective("nll_over_scale", x, complete)


def debiased_margin(
    sharp: Tensor, soft: Tensor, positive: Tensor, count: Tensor, tau_plus: float, least: Tensor
) -> Tensor:
    """(n,) HCL's margin log Ng − s⁺/τ, Robinson et al. 2021, from two logsumexps.

    With importance weights e^{βs/τ}/mean, Σ_j w_j e^{s_j/τ} = K · e^{LSE((1+β)s/τ) − LSE(βs/τ)}.
    Debiasing subtracts τ⁺·K·e^{s⁺/τ}, divides by 1 − τ⁺ and clamps from below at K·e^{−1/τ}.
    `sharp` and `soft` are these logsumexps, `positive` is s⁺/τ, `count` K, `least` the logit −1/τ.
    """
    x = sharp - soft - positive  # without K, which multiplies all of it
    # In logarithms: log(e^x − τ⁺) = x + log(1 − e^{log τ⁺ − x}), only where e^x exceeds τ⁺.
    share = (math.log(tau_plus) if tau_plus > 0 else -math.inf) - x
    inside = share < -1e-6
    debiased = x + torch.log1p(-torch.exp(share.clamp(max=-1e-6)))
    debiased = debiased - math.log1p(-tau_plus)
    floor = least - positive
    return torch.where(inside & (debiased > floor), debiased, floor) + count.log()


def with_slopes(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """`value`, a scalar or (n,), as a function of tensors, each with the derivative to it.

    All are detached. The product of a derivative and the gradient has the shape of its tensor.
    """
    inputs, derivatives = zip(*slopes, strict=True)
    return _WithSlopes.apply(value, *inputs, *derivatives)


class _WithSlopes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *both: Tensor) -> Tensor:
        ctx.save_for_backward(*both[len(both) // 2 :])
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        gradients = [grad * slope for slope in ctx.saved_tensors]
        return None, *gradients, *[None] * len(gradients)


def refuse_double_backward() -> None:
    """Raise if a backward pass is itself recorded (create_graph=True)."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the contrastive operator has no second derivative (create_graph=True). "
            "Compute similarities yourself and call criterion.from_similarities(pos, neg), "
            "which is plain torch and can be differentiated twice."
        )
