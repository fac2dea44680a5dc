"""Small batches on the CPU: a whole loss, value and gradient, in one step of the graph.

With a few hundred rows the number of operations decides, not their size. So the gradient, which is
known in closed form where a loss is a function f of the margin x_i = logsumexp_j(s_ij/τ) − s_i⁺/τ
alone, is written down beside the value, from the same exponentials E_ij = e^{s_ij/τ}:

    dL/dr_i = Σ_j (w_i E_ij + v_j E_ij) c_j − (positives),   w_i = f'(x_i)/(n·τ·Σ_j E_ij)

and the backward pass multiplies it by a number. The factor log2(e)/τ is part of the product, whose
first operand, with beta = 0, does not count. Everything else takes the kernels' way.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from macl.losses.kernels import select, tiles
from macl.losses.kernels.cpu import LOG2E, in_range
from macl.losses.kernels.functions import FUNCTIONS, PairFunction
from macl.losses.kernels.interface import refuse_double_backward
from macl.losses.temperature import AlignmentAdaptive, Fixed, Temperature
from macl.losses.unit import plain_norms, turned

Form = Literal["both", "cross", "one-direction"]


def fits(z1: Tensor, form: Form, temperature: Temperature, kernel: str | None) -> bool:
    """Whether `loss` takes this batch: eager, on the CPU, and τ a number known there."""
    return (
        1 < len(z1) <= (tiles.TILE // 2 if form == "both" else tiles.TILE)
        and z1.device.type == "cpu"
        and z1.dtype in (torch.float32, torch.float64)
        and type(temperature) in (Fixed, AlignmentAdaptive)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and select.selected("cpu", kernel) == "cpu"
    )


def loss(
    z1: Tensor, z2: Tensor, form: Form, temperature: Temperature, function: str
) -> Tensor | None:
    """The mean of f(x) over the anchors; None where rows or τ need more care.

    Args:
        z1: (N, D) anchors of any scale.
        z2: (N, D) positives, row by row.
        form: who is contrasted with whom, see `ContrastiveLoss`.
        temperature: `Fixed` or `AlignmentAdaptive`.
        function: the name of f in `kernels.functions`.
    """
    needed = torch.is_grad_enabled() and (z1.requires_grad or z2.requires_grad)
    with torch.no_grad():
        z = torch.cat([z1, z2])
        norm = plain_norms(z)
        if norm is None:
            return None
        unit = z.div_(norm)
        u1, u2 = unit.chunk(2)
        positive = (u1 * u2).sum(1)
        if isinstance(temperature, AlignmentAdaptive):
            tau = temperature.at(positive.sum().item() / len(positive))
        else:
            assert isinstance(temperature, Fixed)
            tau = temperature.temperature
        if not in_range(tau, z.dtype):
            return None
        f = FUNCTIONS[function]
        if form == "both":
            value, gradient = _both_views(unit, norm, positive, tau, f, needed)
        else:
            value, gradient = _cross_view(u1, u2, positive, tau, f, form == "cross", needed)
        if gradient is None:
            return value
        gradient = turned(gradient, unit, norm)
    return _Known.apply(z1, z2, (value, gradient))


class _Known(torch.autograd.Function):
    """A value whose gradient, of both views one below the other, is known already."""

    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, known: tuple[Tensor, Tensor]) -> Tensor:
        value, gradient = known
        ctx.save_for_backward(gradient)  # freed by the backward pass, though the loss be kept
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        one, two = (ctx.saved_tensors[0] * grad).chunk(2)
        return one, two, None


def _both_views(
    unit: Tensor, norm: Tensor, positive: Tensor, tau: float, f: PairFunction, needed: bool
) -> tuple[Tensor, Tensor | None]:
    """The 2n rows against each other; see `pairs.BothViews`."""
    n = len(positive)
    e = torch.addmm(norm, unit, unit.T, beta=0, alpha=LOG2E / tau).exp2_()
    # Entries (an + i, bn + i): a row itself (a = b), and its positive (a ≠ b).
    e.as_strided((2, 2, n), (2 * n * n, n, 2 * n + 1)).fill_(0.0)
    sums = e.sum(1)
    x = torch.sub(sums.log().view(2, n), positive, alpha=1 / tau)
    value, share = f.value(x).mean(), 1 / (2 * n * tau)
    if not needed:
        return value, None
    positives = e.as_strided((2, n), (2 * n * n - n, 2 * n + 1), n)
    if f.rises_by_one:
        w = sums.reciprocal_().mul_(share)
        e *= w[:, None] + w
        positives.fill_(-2 * share)
    else:
        g = f.derivative(x).mul_(share)
        w = g.view(-1) / sums
        e *= w[:, None] + w
        positives.copy_(g.sum(0).neg_())
    return value, torch.mm(e, unit)


def _cross_view(
    u1: Tensor,
    u2: Tensor,
    positive: Tensor,
    tau: float,
    f: PairFunction,
    symmetric: bool,
    needed: bool,
) -> tuple[Tensor, Tensor | None]:
    """The rows of one view against those of the other, and both ways; see `CrossView`."""
    e = torch.addmm(positive, u1, u2.T, beta=0, alpha=LOG2E / tau).exp2_().fill_diagonal_(0.0)
    by_row = e.sum(1)
    sums = torch.stack([by_row, e.sum(0)]) if symmetric else by_row
    x = torch.sub(sums.log(), positive, alpha=1 / tau)
    value = f.value(x).mean()
    if not needed:
        return value, None
    g = f.derivative(x).mul_(1 / (x.numel() * tau))
    if symmetric:
        w, v = g / sums
        e *= w[:, None] + v
        e.diagonal().copy_(g.sum(0).neg_())
        return value, torch.cat([torch.mm(e, u2), torch.mm(e.T, u1)])
    # A number for each row goes to the thin side: E itself is not touched.
    torch.neg(sums, out=e.diagonal())
    w = (g / sums)[:, None]
    return value, torch.cat([torch.mm(e, u2).mul_(w), torch.mm(e.T, u1 * w)])
