"""HCL's negatives in plain torch: both of its logsumexps from one pass over the similarities.

With l' = l − max_j l, the sums S_i = Σ_j e^{βl'_ij} and T_i = Σ_j e^{(1+β)l'_ij} give

    ease_i = logsumexp_j(βl_ij) − logsumexp_j((1+β)l_ij) = log(S_i/T_i) − max_j l_ij
    −∂ease_i/∂l_ij = e^{βl'_ij}·[(1+β)·e^{l'_ij}/T_i − β/S_i]

so that value and gradient take three matrix products, as other losses do, instead of six.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from macl.losses.kernels import bands, dispatch, tiles
from macl.losses.kernels.interface import Direction, Plan, refuse_double_backward

Gradients = tuple[Tensor | None, ...]

LEAST_BETA = 1e-6
"""Gradients are divided by β on the way."""


class Hardened(torch.autograd.Function):
    """(n,) ease and (n,) logits on the diagonals `plan.positives`, of rows against themselves.

    Every row has a pair that counts; β > 0; τ is a scalar, (n,), or None with a map.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, temperature: Tensor | None, plan: Plan, beta: float
    ) -> tuple[Tensor, Tensor]:
        """Values, and the sums that the backward pass needs."""
        scaled = bands.scaled(rows, temperature)
        found, peaks, soft, sharp = (bands.ByRow(len(rows)) for _ in range(4))
        for tile in tiles.bands(len(rows), len(rows), rows.device):
            logits, _ = bands.logits(scaled, rows, tile, plan.map)
            found.put(tile, bands.on_diagonals(logits, tile, plan.positives))
            plan.exclude.apply(logits, tile, -math.inf)
            peak = bands.peak(logits, empty=False)
            e, raised = _exponentials(logits.sub_(peak[:, None]), beta)
            peaks.put(tile, peak)
            soft.put(tile, raised.sum(1))
            sharp.put(tile, raised.mul_(e).sum(1))
        s, t, peak = soft.whole, sharp.whole, peaks.whole
        ctx.plan, ctx.beta = plan, beta
        ctx.save_for_backward(rows, temperature, scaled, s, t, peak)
        return torch.div(s, t).log_().sub_(peak), found.whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_positive: Tensor) -> Gradients:
        """Gradients to the rows and τ."""
        refuse_double_backward()
        rows, temperature, scaled, s, t, peak = ctx.saved_tensors
        plan, beta = ctx.plan, ctx.beta
        per_soft, per_sharp = (grad / s)[:, None], (grad / t)[:, None]
        parts = tiles.bands(len(rows), len(rows), rows.device)
        per_row = temperature is not None and temperature.ndim > 0
        transposes = len(parts) == 1 and not per_row  # p + pᵀ serves rows and columns
        pulls = bands.ByRow(len(rows))
        push: Tensor | None = None
        for tile in parts:
            band = slice(tile.top, tile.bottom)
            logits, slope = bands.logits(scaled, rows, tile, plan.map, slopes=True)
            plan.exclude.apply(logits, tile, -math.inf)
            e, raised = _exponentials(logits.sub_(peak[band, None]), beta)
            # ∂L/∂l, divided by β: one factor for the product instead of one for every pair.
            p = torch.addcmul(per_soft[band], e, per_sharp[band], value=-(1 + 1 / beta))
            p.mul_(raised)
            bands.put(p, tile, plan.positives, grad_positive, None, 1 / beta)
            if slope is not None:
                p.mul_(slope)
            if transposes:
                p = p + p.T
            else:
                part = p.T @ scaled[band]
                push = part if push is None else push.add_(part)
            pulls.put(tile, p @ (rows if per_row else scaled))
        d_rows = pulls.whole
        if beta != 1:
            d_rows.mul_(beta)
        if per_row:
            d_rows = d_rows / temperature[:, None]
        d_temperature = None
        if temperature is not None and ctx.needs_input_grad[1]:
            # So far a pair counts from its row's end, or from either where both are joined.
            direction: Direction = "mirror" if transposes else "rows"
            found = Plan(plan.exclude, direction)
            d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, found)
        if push is not None:
            d_rows = torch.add(d_rows, push, alpha=beta)
        return d_rows, d_temperature, None, None


def _exponentials(shifted: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """e^{l'} and e^{βl'}; one tensor for both where they are equal."""
    if beta == 1:
        shifted.exp_()
        return shifted, shifted
    return shifted.exp(), shifted.mul_(beta).exp_()
