"""Small batches on the CPU: a whole loss, value and gradient, in one step of the graph.

With a few hundred rows the number of operations decides, not their size. So the gradient, which is
known in closed form where a loss is a function f of the margin x_i = logsumexp_j(s_ij/τ) − s_i⁺/τ
alone, is written down beside the value, from the same exponentials E_ij = e^{s_ij/τ}:

    dL/dr_i = Σ_j (w_i E_ij + v_j E_ij) c_j − (positives),   w_i = f'(x_i)/(n·τ·Σ_j E_ij)

and the backward pass multiplies it by a number. The similarities, their exponentials and the
weights of the gradient are one matrix that is overwritten in place; `positive` is a view of the
entries of the positives in it. Everything else takes the kernels' way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from macl import distributed
from macl.losses.kernels import select, tiles
from macl.losses.kernels.cpu import LOG2E, in_range
from macl.losses.kernels.functions import FUNCTIONS, PairFunction
from macl.losses.kernels.interface import refuse_double_backward
from macl.losses.temperature import AlignmentAdaptive, Fixed, Temperature
from macl.losses.unit import plain_norms, turned

if TYPE_CHECKING:
    from macl.losses.contrastive import ContrastiveLoss

LN2 = math.log(2)
Known = tuple[Tensor, tuple[Tensor, ...]]
"""The value, and its gradient with respect to either view; () where none is needed."""


def loss(criterion: ContrastiveLoss, z1: Tensor, z2: Tensor) -> Tensor | None:
    """The mean of f(x) over the anchors; None where it is not closed, or inputs need more care.

    Args:
        criterion: says who is contrasted, f and τ.
        z1: (N, D) anchors of any scale.
        z2: (N, D) positives, row by row.
    """
    if not (
        fits(z1, z2, criterion.negatives == "both")
        and is_closed(criterion)
        and distributed.world_size() == 1
        and select.wanted(criterion.kernel) == "auto"
    ):
        return None
    if torch.is_grad_enabled() and (z1.requires_grad or z2.requires_grad):
        return _Known.apply(z1, z2, criterion)
    known = _known(criterion, z1, z2, needed=False)
    return None if known is None else known[0]


def fits(z1: Tensor, z2: Tensor, both: bool) -> bool:
    """Whether these are two small views of one type on the CPU, in eager mode.

    Views that do not fit are refused, with the reason, by the kernels' way.
    """
    shape = z1.shape
    return (
        not torch.compiler.is_compiling()  # first: what follows would be guards of the graph
        and z1.is_cpu
        and z2.is_cpu
        and z1.dtype == z2.dtype
        and z1.dtype in (torch.float32, torch.float64)
        and len(shape) == 2
        and shape == z2.shape
        and 1 < shape[0] <= (tiles.TILE // 2 if both else tiles.TILE)
        and not torch.is_autocast_enabled("cpu")
    )


def is_closed(criterion: ContrastiveLoss) -> bool:
    """Whether the loss is the mean of an f(x) over this rank's batch at one τ without gradient."""
    return (
        criterion.pair_function is not None
        and getattr(type(criterion).objective, "of_one_pair", False)
        and type(criterion.temperature) in (Fixed, AlignmentAdaptive)
        and criterion.reduction == "mean"
        and not criterion.gather
    )


class _Known(torch.autograd.Function):
    """A value whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, criterion: ContrastiveLoss) -> Tensor | None:
        known = _known(criterion, z1, z2, needed=True)
        if known is None:
            return None
        value, gradients = known
        ctx.save_for_backward(*gradients)  # freed by the backward pass, though the loss be kept
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        one, two = ctx.saved_tensors
        return one * grad, two * grad, None


def _known(criterion: ContrastiveLoss, z1: Tensor, z2: Tensor, needed: bool) -> Known | None:
    assert criterion.pair_function is not None
    temperature, f = criterion.temperature, FUNCTIONS[criterion.pair_function]
    if criterion.negatives == "both":
        return _both_views(z1, z2, temperature, f, needed)
    return _cross_view(z1, z2, temperature, f, criterion.symmetric, needed)


def _exponents(
    rows: Tensor,
    columns: Tensor,
    temperature: Temperature,
    positives: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, float] | None:
    """The matrix s_ij·log2(e)/τ, the view `positives` of it, and τ; None for τ out of range."""
    if isinstance(temperature, AlignmentAdaptive):
        e = torch.mm(rows, columns.T)
        positive = positives(e)
        tau = temperature.at(positive.sum().item() / positive.numel())
        e *= LOG2E / tau
    else:
        assert isinstance(temperature, Fixed)
        tau = temperature.temperature
        e = torch.mm(rows * (LOG2E / tau), columns.T)  # a factor known before: on the thin side
        positive = positives(e)
    return (e, positive, tau) if in_range(tau, e.dtype) else None


def _positives_of_both(e: Tensor) -> Tensor:
    """(2, n) view of the entries (i, n + i) and (n + i, i) of a (2n, 2n) matrix."""
    n = e.shape[0] // 2
    return e.as_strided((2, n), (2 * n * n - n, 2 * n + 1), n)


def _both_views(
    z1: Tensor, z2: Tensor, temperature: Temperature, f: PairFunction, needed: bool
) -> Known | None:
    """The 2n rows against each other; see `pairs.BothViews`."""
    z = torch.cat([z1, z2])
    norm = plain_norms(z)
    if norm is None:
        return None
    unit = z.div_(norm)
    exponents = _exponents(unit, unit, temperature, _positives_of_both)
    if exponents is None:
        return None
    e, positive, tau = exponents
    logit = positive * LN2
    e.exp2_().fill_diagonal_(0.0)
    positive.zero_()
    sums = e.sum(1, keepdim=True)
    x = sums.log().view_as(logit) - logit
    value, share = f.value(x).mean(), 1 / (x.numel() * tau)
    if not needed:
        return value, ()
    if f.rises_by_one:
        w = sums.reciprocal_().mul_(share)
        e *= w + w.T
        positive.fill_(-2 * share)
    else:
        g = f.derivative(x).mul_(share)
        w = g.view(-1, 1) / sums
        e *= w + w.T
        positive.copy_(g.sum(0).neg_())
    return value, turned(torch.mm(e, unit), unit, norm).chunk(2)


def _cross_view(
    z1: Tensor,
    z2: Tensor,
    temperature: Temperature,
    f: PairFunction,
    symmetric: bool,
    needed: bool,
) -> Known | None:
    """The rows of one view against those of the other, and both ways; see `CrossView`."""
    norm1, norm2 = plain_norms(z1), plain_norms(z2)
    if norm1 is None or norm2 is None:
        return None
    u1, u2 = z1 / norm1, z2 / norm2
    exponents = _exponents(u1, u2, temperature, torch.diagonal)
    if exponents is None:
        return None
    e, positive, tau = exponents
    logit = positive * LN2
    e.exp2_()
    positive.zero_()
    sums = torch.stack([e.sum(1), e.sum(0)]) if symmetric else e.sum(1)
    x = sums.log() - logit
    value = f.value(x).mean()
    if not needed:
        return value, ()
    g = f.derivative(x).mul_(1 / (x.numel() * tau))
    if symmetric:
        w, v = g / sums
        e *= w.unsqueeze(1) + v
        torch.neg(g.sum(0), out=positive)
        g1, g2 = torch.mm(e, u2), torch.mm(e.T, u1)
    else:  # a number for each row goes to the thin side: E itself is not touched
        torch.neg(sums, out=positive)
        w = (g / sums).unsqueeze(1)
        g1, g2 = torch.mm(e, u2).mul_(w), torch.mm(e.T, u1 * w)
    return value, (turned(g1, u1, norm1), turned(g2, u2, norm2))
