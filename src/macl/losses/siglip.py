"""SigLIP: every pair of the batch is a classification of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from macl.losses import siglip_kept
from macl.losses.concerns import Acting, Concern
from macl.losses.contrastive import ContrastiveLoss, Form
from macl.losses.inputs import Inputs, Terms
from macl.losses.kernels.functions import softplus
from macl.losses.logits import Logits
from macl.losses.negative_sums import pair_sum
from macl.losses.pairs import Pairs
from macl.losses.temperature import Temperature, check_positive

if TYPE_CHECKING:
    from typing_extensions import Unpack


BALANCE = 10.0
"""Ratio of repulsion and attraction from which on b is far from balance."""


class LogitScale(Temperature):
    """τ = exp(−t'), with t' trained and without bounds."""

    adapts = False

    def __init__(self, temperature: float) -> None:
        super().__init__()
        start = -math.log(check_positive("temperature", temperature))
        self.log_scale = nn.Parameter(torch.tensor(start))

    def forward(self, alignment: Tensor) -> Tensor:
        """exp(−t'), with gradient."""
        return self.log_scale.neg().exp().to(alignment.dtype)

    def scale(self, alignment: Tensor) -> Tensor:
        """t = exp(t'), with gradient."""
        return self.log_scale.exp().to(alignment.dtype)

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return f"{math.exp(-self.log_scale.item()):g}"


class SigLIP(ContrastiveLoss):
    """Sigmoid loss, Zhai et al. 2023: a positive pair should have t·s + b > 0, all others < 0.

        L_i = softplus(−(t·s⁺ + b)) + Σ_j softplus(t·s_j + b),   t = e^{t'}

    One mean over rows, not over pairs. t' and b are parameters: give `criterion.parameters()` to
    the optimiser, without weight decay. `contrast` reports margins and InfoNCE's value at τ = 1/t.

    Args:
        temperature: 1/t at the start, trained in the form t' = log t; or a `Temperature`.
        bias: b at the start. At −10 the many negatives begin balanced with the one positive.
        form: as `ContrastiveLoss`; by default the first view's rows against the second's. The
            other direction holds the same pairs: symmetric=True costs twice as much for the same
            value (it differs with hard negatives, which belong to the first view). With `gather`,
            this rank's rows of the first view against every rank's of the second.
    """

    needs_negatives = False

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        bias: float = -10.0,
        **form: Unpack[Form],
    ) -> None:
        if not isinstance(temperature, Temperature):
            temperature = LogitScale(temperature)
        form.setdefault("negatives", "cross")
        form.setdefault("symmetric", False)
        super().__init__(temperature, **form)
        if not math.isfinite(bias):
            raise ValueError(f"bias must be finite, got {bias}. The published start is -10.")
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(−(t·s⁺ + b)) + Σ_j softplus(t·s_j + b)."""
        if not isinstance(logits, Tensor) or logits.ndim:
            raise ValueError("SigLIP has one temperature for all pairs: give a number.")
        return self._per_anchor(pairs, logits.reciprocal())

    def _per_anchor(self, pairs: Pairs, scale: Tensor) -> Tensor:
        bias = self.bias.to(scale.dtype)
        if (whole := siglip_kept.per_anchor(pairs, scale, bias)) is not None:
            return whole
        logit = torch.addcmul(bias, scale, pairs.positive)
        return softplus(-logit) + pair_sum(pairs, scale, bias)

    def concerns(self, acting: Acting) -> list[Concern]:
        """b at which attraction and repulsion are far from equal; ∂L/∂b = push − pull."""
        pull, push = acting.pull.mean().item(), acting.push.mean().item()
        if not acting.negatives.any() or pull * push <= 0:
            return []
        if 1 / BALANCE <= push / pull <= BALANCE:
            return []
        bias, stronger = self.bias.item(), "repulsion" if push > pull else "attraction"
        times = max(push / pull, pull / push)
        # In the tail of the sigmoid the repulsion is proportional to e^b.
        balanced = bias - math.log(push / pull)
        return [
            Concern(
                f"b = {bias:.2f} is far from balance: the {stronger} is {times:,.0f} times the "
                "other",
                f"Start loss.bias at about {balanced:.1f}, or train b longer.",
                "Until b is in balance, all embeddings move together instead of by their pairs.",
                {"bias": bias, "pull": pull, "push": push, "balanced": balanced},
            )
        ]

    def _terms(self, pairs: Pairs, alignment: Tensor, inputs: Inputs, figures: bool) -> Terms:
        if isinstance(self.temperature, LogitScale):
            scale = self.temperature.scale(alignment)
            tau, per_anchor = scale.detach().reciprocal(), self._per_anchor(pairs, scale)
        else:
            tau = self.temperature(alignment)
            per_anchor = self.objective(pairs, tau, alignment)
        x = None
        if figures:
            with torch.no_grad():
                x = pairs.margin(tau)
        return Terms(tau, x, per_anchor, own={"bias": self.bias.detach()})
