"""The family: each loss as a function of the margin x = logsumexp(negatives/τ) − positive/τ.

With P = σ(−x) the probability of the positive and W = σ(x) the gradient scale of the paper,

    objective            value                          gradient
    info_nce             softplus(x) = −log P           W · ∇x
    dcl                  x                              ∇x
    flat_nce             exp(x − sg x) = 1              ∇x
    dual                 sg[W(τ_β)/W(τ)] · softplus(x)  W(τ_β) · ∇x
    reweighted           softplus(x) / sg W             ∇x

All take and return (n,) tensors and are finite with finite gradients for every finite x. An anchor
without any negative has x = −∞: there is nothing to contrast, so its loss and gradient are 0. With
`complete` there is no such anchor, and none is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.kernels.functions import nll_over_gradient_scale, softplus
from macl.losses.known import known
from macl.losses.unit import reads_values

Objective = TypeVar("Objective", bound=Callable[..., Tensor])


def of_one_pair(objective: Objective) -> Objective:
    """Mark a loss' method `objective` as its `pair_function` of the margin, nothing else."""
    objective.of_one_pair = True  # type: ignore[attr-defined]
    return objective


def info_nce(x: Tensor, complete: bool = False) -> Tensor:
    """InfoNCE, van den Oord et al. 2018: −log P = softplus(x)."""
    return _guard(x, softplus, complete)


def dcl(x: Tensor, complete: bool = False) -> Tensor:
    """Decoupled contrastive loss, Yeh et al. 2022: the positive leaves the denominator."""
    return _guard(x, lambda x: x, complete)


def flat_nce(x: Tensor, complete: bool = False) -> Tensor:
    """FlatNCE, Chen et al. 2021: always 1 in value; watch InfoNCE's value instead."""
    return _guard(x, lambda x: torch.exp(x - x.detach()), complete)


def dual(x: Tensor, x_beta: Tensor, complete: bool = False) -> Tensor:
    """Dual temperature, Zhang et al. 2022: InfoNCE rescaled to the W of a larger temperature.

    The ratio W(τ_β)/W(τ) overflows for easy positives while softplus(x)/W(τ) → 1, so value and
    gradient are formed apart: value W(τ_β)·softplus(x)/W(τ), gradient W(τ_β)·∇x.
    """
    weight = torch.sigmoid(x_beta.detach())

    def formula(x: Tensor) -> Tensor:
        return weight * _value_with_gradient_of(x, nll_over_gradient_scale(x.detach()))

    return _guard(x, formula, complete)


def reweighted(x: Tensor, complete: bool = False) -> Tensor:
    """MACL's second half: InfoNCE / sg[W], so the gradient is ∇x (Eq. 11 of the paper)."""

    def formula(x: Tensor) -> Tensor:
        return _value_with_gradient_of(x, nll_over_gradient_scale(x.detach()))

    return _guard(x, formula, complete)


def hardened(
    sharp: Tensor,
    soft: Tensor,
    positive: Tensor,
    count: Tensor,
    tau_plus: float,
    least: Tensor,
) -> Tensor:
    """(n,) HCL's margin log Ng − s⁺/τ, Robinson et al. 2021, from two logsumexps.

    With importance weights e^{βs/τ}/mean, Σ_j w_j e^{s_j/τ} = K · e^{LSE((1+β)s/τ) − LSE(βs/τ)}.
    Debiasing subtracts τ⁺·K·e^{s⁺/τ}, divides by 1 − τ⁺ and clamps from below at K·e^{−1/τ}.

    Args:
        sharp: (n,) LSE of (1+β)s/τ.
        soft: (n,) LSE of βs/τ.
        positive: (n,) s⁺/τ.
        count: (n,) number of negatives K.
        tau_plus: prior probability τ⁺ that a negative is a false one.
        least: the logit of similarity −1, −1/τ.
    """
    x = sharp - soft - positive  # without K, which multiplies all of it
    # In logarithms: log(e^x − τ⁺) = x + log(1 − e^{log τ⁺ − x}), only where e^x exceeds τ⁺.
    share = (math.log(tau_plus) if tau_plus > 0 else -math.inf) - x
    inside = share < -1e-6
    debiased = x + torch.log1p(-torch.exp(share.clamp(max=-1e-6)))
    debiased = debiased - math.log1p(-tau_plus)
    floor = least - positive
    return torch.where(inside & (debiased > floor), debiased, floor) + count.log()


def hardened_known(
    ease: Tensor, positive: Tensor, count: int, tau_plus: float, floor: Tensor
) -> Tensor:
    """`hardened` of logits from one pass, its derivatives written down; differentiable once.

        x = max(log[K·(1 − e^share)/(1 − τ⁺)] − ease, floor) − s⁺/τ,   share = ease + s⁺/τ + log τ⁺

    The first has the slope 1/(e^share − 1) to ease and to s⁺/τ.

    Args:
        ease: (n,) LSE of βs/τ less LSE of (1+β)s/τ.
        positive: (n,) s⁺/τ.
        count: number of negatives K of every anchor.
        tau_plus: as in `hardened`.
        floor: log K − 1/τ, the logit of similarity −1 with its count.
    """
    scale = count / (1 - tau_plus)
    with torch.no_grad():
        share = (ease + positive).add_(math.log(tau_plus) if tau_plus > 0 else -math.inf)
        less = share.expm1_()
        debiased = F.threshold(less * -scale, 1e-6 * scale, 0.0, True).log_().sub_(ease)
        floored = debiased <= floor
        value = torch.maximum(debiased, floor).sub_(positive)
        slope = less.reciprocal_()
        slopes = [
            (ease, slope.masked_fill(floored, 0.0)),
            (positive, slope.masked_fill(floored, -1.0)),
        ]
        if floor.requires_grad:
            slopes.append((floor, floored.to(value.dtype)))
    return known(value, *slopes)


def _value_with_gradient_of(x: Tensor, value: Tensor) -> Tensor:
    return x + (value - x).detach()


def _guard(x: Tensor, formula: Callable[[Tensor], Tensor], complete: bool) -> Tensor:
    """Apply `formula` where x is finite; 0, and no gradient, where there are no negatives."""
    if complete or (reads_values(x) and float(x.detach().amin()) > -math.inf):
        return formula(x)
    alone = x.isneginf()
    return formula(x.masked_fill(alone, 0.0)).masked_fill(alone, 0.0)
