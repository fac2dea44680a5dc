"""A whole loss on the Triton kernels: value and gradient in a few launches, one step of the graph.

Where a loss is the mean of a function f of the margin x_i = lse_i − s_i⁺/τ, everything around the
N×N part is known in closed form, and each part of it is one kernel:

    normalised    u = z/|z| of both views, s⁺
    lse           lse_i = logsumexp_j(s_ij/τ)
    anchors       L = mean f(x), w = dL/dx
    lse_grad      g_i = Σ_j (w_i·P_ij + w_j·P_ji)·u_j/τ
    projected     dL/dz = (g⁺ − u⟨u, g⁺⟩)/|z|, g⁺ = g with the pull of the positives

P_ij = e^{s_ij/τ − lse_i}. A loss on both views launches five kernels, across views seven, and τ
itself is one operation, or a mean and two for an adaptive one. Everything else takes the operator:
`contrast`, other arguments than two views, a learned τ, maps, float64, and torch.compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from macl import distributed
from macl.losses.kernels import select
from macl.losses.kernels.interface import Exclusions, refuse_double_backward
from macl.losses.small import is_closed
from macl.losses.unit import check_finite

if TYPE_CHECKING:
    from macl.losses.contrastive import ContrastiveLoss

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def loss(criterion: ContrastiveLoss, z1: Tensor, z2: Tensor) -> Tensor | None:
    """The mean of f(x) over the anchors; None where it is not closed or not for these kernels.

    Args:
        criterion: says who is contrasted, f and τ.
        z1: (N, D) anchors of any scale.
        z2: (N, D) positives, row by row.
    """
    if not (fits(z1, z2) and is_closed(criterion)):
        return None
    if select.selected(z1.device, criterion.kernel) != "triton":
        return None
    if criterion.checks(z1):
        check_finite(z1, "z1")
        check_finite(z2, "z2")
    return _Fused.apply(z1, z2, criterion)


def fits(z1: Tensor, z2: Tensor) -> bool:
    """Whether these are two views of at least two rows, of a type the kernels take, in eager mode.

    Views that do not fit are refused, with the reason, by the operator's way.
    """
    shape = z1.shape
    return (
        not torch.compiler.is_compiling()  # first: what follows would be guards of the graph
        and z1.dtype == z2.dtype
        and z1.dtype in TYPES
        and z1.device == z2.device
        and len(shape) == 2
        and shape == z2.shape
        and shape[0] > 1
        and shape[1] > 0
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, criterion: ContrastiveLoss) -> Tensor:
        from macl.losses.kernels import triton_step as step  # needs the package triton

        assert criterion.pair_function is not None
        unit = step.normalised(z1, z2)
        tau = _temperature(criterion, unit.positive)
        both, symmetric = criterion.negatives == "both", criterion.symmetric
        lse = _logsumexps(unit.rows, tau, both, symmetric)
        mean, weights = step.anchors(lse, unit, tau, criterion.pair_function)
        ctx.save_for_backward(*unit, tau, lse, weights)
        ctx.both, ctx.dtype = both, z1.dtype
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from macl.losses.kernels import triton_step as step

        refuse_double_backward()
        *parts, tau, lse, weights = ctx.saved_tensors
        unit = step.Unit(*parts)
        pulls = _pulls(unit.rows, tau, lse, weights, ctx.both)
        one, two = step.projected(pulls, unit, weights, tau, grad, ctx.dtype).chunk(2)
        return one, two, None


def _temperature(criterion: ContrastiveLoss, positive: Tensor) -> Tensor:
    """τ, 0-d, of (N,) similarities of the positives."""
    if criterion.temperature.adapts:
        alignment = distributed.global_mean(positive)
    else:
        alignment = positive.new_empty(())  # only its type and device count
    tau = criterion.temperature(alignment)
    assert isinstance(tau, Tensor)
    return tau


def _logsumexps(rows: Tensor, tau: Tensor, both: bool, symmetric: bool) -> Tensor:
    """(2N,) over the negatives of each anchor; (N,) across views in one direction."""
    from macl.losses.kernels import triton

    n = len(rows) // 2
    if both:
        return triton.lse(rows, rows, tau, Exclusions((0, n, -n)))
    one, two = rows.chunk(2)
    lse = rows.new_empty(2 * n if symmetric else n)
    triton.lse(one, two, tau, Exclusions((0,)), out=lse[:n])
    if symmetric:
        triton.lse(two, one, tau, Exclusions((0,)), out=lse[n:])
    return lse


def _pulls(rows: Tensor, tau: Tensor, lse: Tensor, weights: Tensor, both: bool) -> Tensor:
    """(2N, D) gradient of Σ_i weights_i·lse_i to the unit rows."""
    from macl.losses.kernels import triton

    n = len(rows) // 2
    if both:
        exclude = Exclusions((0, n, -n))
        return triton.lse_grad(rows, rows, tau, exclude, weights, lse, weights, lse)
    one, two = rows.chunk(2)
    exclude, out = Exclusions((0,)), torch.empty_like(rows)
    first = weights[:n], lse[:n]
    second: tuple[Tensor | None, Tensor | None] = None, None
    if len(lse) > n:  # else the rows of the second view are no anchors
        second = weights[n:], lse[n:]
    triton.lse_grad(one, two, tau, exclude, *first, *second, out=out[:n])
    triton.lse_grad(two, one, tau, exclude, *second, *first, out=out[n:])
    return out
