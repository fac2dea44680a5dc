"""SupCon: rows of one label are positives of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from macl.losses import objectives
from macl.losses.contrast import Contrast
from macl.losses.contrastive import ContrastiveLoss, Form
from macl.losses.inputs import Inputs, Terms
from macl.losses.kernels.functions import softplus
from macl.losses.logits import Logits
from macl.losses.pairs import Pairs
from macl.losses.positives import SeveralPositives
from macl.losses.temperature import Temperature

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SupCon(ContrastiveLoss):
    """Supervised contrastive loss, Khosla et al. 2020, over the positives p of each anchor.

        out:  L_i = −(1/|P|)·Σ_p log P_ip = logsumexp_all − mean_p s_ip/τ
        in:   L_i = −log((1/|P|)·Σ_p P_ip) = log|P| + softplus(logsumexp_neg − logsumexp_pos)

    P_ip is the softmax over all other rows, positives included; in ≤ out. Without labels every
    pair is its own class, which gives NT-Xent. An anchor without positives (one view, a class with
    one row) does not enter the mean.

    Args:
        temperature: τ. The published code also multiplies the loss by τ/0.07; this one does not.
        form: "out" (the paper's choice) or "in".
        keywords: as `ContrastiveLoss`; by default both views. A bank, groups beside labels and
            hard negatives are refused.
    """

    takes_labels = True
    takes_bank = False
    pair_function = "softplus"

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        form: Literal["out", "in"] = "out",
        **keywords: Unpack[Form],
    ) -> None:
        super().__init__(temperature, **keywords)
        if form not in ("out", "in"):
            raise ValueError(f'form is "out" or "in", got {form!r}.')
        self.form = form

    def forward(
        self, z1: Tensor, z2: Tensor | None = None, *, labels: Tensor | None = None, **extra: Any
    ) -> Tensor:
        """The loss; see `contrast`."""
        return self._loss(_inputs(z1, z2, labels, **extra))

    def contrast(
        self, z1: Tensor, z2: Tensor | None = None, *, labels: Tensor | None = None, **extra: Any
    ) -> Contrast:
        """The loss with the figures that it is made of.

        Args:
            z1: (N, D) rows of any scale; normalised inside.
            z2: (N, D) second view; without it, the rows of `z1` are contrasted with each other.
            labels: (N,) integers. Without them, `groups` or `positives` are the labels.
            extra: as in `ContrastiveLoss.contrast`.
        """
        return self._evaluate(_inputs(z1, z2, labels, **extra))

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(x), the loss of an anchor with one positive."""
        return objectives.info_nce(x, pairs.complete)

    def _terms(self, pairs: Pairs, alignment: Tensor, inputs: Inputs, figures: bool) -> Terms:
        if not isinstance(pairs, SeveralPositives):
            return super()._terms(pairs, alignment, inputs, figures)
        tau = self.temperature(alignment)
        x = counted = None
        alone = None if pairs.all_have_positives else pairs.positive_count == 0
        if self.form == "in":
            negative, positive = pairs.logsumexp(tau), pairs.logsumexp_positives(tau)
            if alone is not None:
                positive = positive.masked_fill(alone, 0.0)
            count = pairs.positive_count if alone is None else pairs.positive_count.clamp(min=1)
            per_anchor = softplus(negative - positive) + count.log()
            if figures:
                x = negative.detach() - pairs.mean_positive_logit(tau).detach()
        else:
            per_anchor = pairs.logsumexp_all(tau) - pairs.mean_positive_logit(tau)
            if figures:
                with torch.no_grad():
                    x = pairs.logsumexp(tau) - pairs.mean_positive_logit(tau)
        if alone is not None:
            counted = (~alone).to(per_anchor.dtype)
            per_anchor = per_anchor.masked_fill(alone, 0.0)
        own = {"positives_per_anchor": pairs.positive_count.mean()} if figures else {}
        return Terms(tau, x, per_anchor, counted, own=own)


def _inputs(
    z1: Tensor,
    z2: Tensor | None,
    labels: Tensor | None,
    *,
    groups: Tensor | None = None,
    positives: Tensor | None = None,
    **extra: Any,
) -> Inputs:
    """The labels as classes of positives; every pair a class of its own where there are none."""
    given = [classes for classes in (labels, positives, groups) if classes is not None]
    if len(given) > 1:
        raise ValueError("labels, positives and groups all say which rows agree: give one of them.")
    if given:
        return Inputs(z1, z2, positives=given[0], **extra)
    if z2 is None:
        raise ValueError("one view has no positives without labels: give labels=(N,).")
    return Inputs(z1, z2, **extra)
