"""How the loss weighs a sample: margins, gradients, and the weight of every negative."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from macl import geometry
from macl.losses import ContrastiveLoss
from macl.losses.logits import Logits, logit
from macl.losses.pairs import Explicit
from macl.losses.unit import unit_rows

CHUNK = 2**24
"""The most similarities held at once."""


@dataclass(frozen=True)
class Weighed:
    """How the loss weighs a sample: (n,) entries for n anchors, (b,) for b batches."""

    items: Tensor
    """(n,) which item each anchor is a view of."""
    margin: Tensor
    """(n,) x = logsumexp(negatives/τ) − positive/τ."""
    carried: Tensor
    """(n,) −τ ∂L_i/∂s⁺_i, the factor that the gradient carries: W for InfoNCE, 1 for DCL. Where the
    loss is itself multiplied by τ (`scales_with_temperature`), without that τ."""
    pushed: Tensor
    """(n,) τ Σ_j ∂L_i/∂s_ij, the same for the negatives; equal to it for a function of x."""
    hotter: Tensor
    """(n,) W at twice the temperature (Proposition 2)."""
    count: Tensor
    """(n,) number of negatives K."""
    entropy: Tensor
    """(n,) of the weights on the negatives, in nats."""
    top1: Tensor
    """(n,) share of the weight on the hardest 1% of the negatives, one at least."""
    top5: Tensor
    """(n,) the same for 5%."""
    anchor_temperature: Tensor
    """(n,) τ of each anchor; for a logit map 1/g'(s⁺)."""
    alignment: Tensor
    """(b,) A of each batch."""
    temperature: Tensor
    """(b,) τ of each batch, the mean over its anchors."""
    floored: Tensor
    """(b,) whether the temperature's floor was acting."""

    @property
    def scale(self) -> Tensor:
        """(n,) W_i = σ(x_i)."""
        return torch.sigmoid(self.margin)

    @property
    def effective_share(self) -> Tensor:
        """(n,) effective negatives exp H over K: 1 when all weigh the same."""
        return self.entropy.exp() / self.count

    def with_more_negatives(self, times: float) -> float:
        """Mean W with that many times the negatives (Proposition 1): σ(x + log times)."""
        return torch.sigmoid(self.margin + math.log(times)).mean().item()

    @classmethod
    def join(cls, parts: Sequence[Weighed]) -> Weighed:
        """Several batches as one sample."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@torch.no_grad()
def weigh(
    loss: ContrastiveLoss,
    z1: Tensor,
    z2: Tensor,
    items: Tensor,
    *,
    bank: Tensor | None = None,
    groups: Tensor | None = None,
    hard: Tensor | None = None,
    hard_groups: Tensor | None = None,
    labels: Tensor | None = None,
) -> Weighed:
    """One batch, as `loss.contrast` would take it; `items` (N,) says which item each row is.

    `labels` (N,) are for losses that take them: rows of one label are not negatives, and the
    positive of an anchor is its other view.
    """
    own: dict[str, Any] = {"groups": groups}
    if loss.takes_indices:
        own["indices"] = items
    if loss.takes_labels and labels is not None:
        own, groups = {"labels": labels}, labels
    with _in_eval_mode(loss):
        contrast = loss.contrast(z1, z2, bank=bank, hard=hard, hard_groups=hard_groups, **own)
        logits = loss.temperature(contrast.alignment)
    if isinstance(logits, Tensor):
        logits = contrast.temperature  # also where it is kept per sample, outside the module
    sides = _sides(loss, z1, z2, items, bank, groups, hard, hard_groups)
    anchors = sum(len(side.anchors) for side in sides)
    temperature = contrast.temperature.expand(anchors)
    parts, start = [], 0
    for side in sides:
        for anchor_items, pos, neg, rows in side.chunks():
            tau = temperature[start + rows]
            own_logits = tau if isinstance(logits, Tensor) and logits.ndim else logits
            parts.append(_part(loss, tau, own_logits, anchor_items, pos, neg))
        start += len(side.anchors)
    per_anchor = [torch.cat(column) for column in zip(*parts, strict=True)]
    batch = (contrast.alignment, contrast.temperature.mean(), contrast.floored)
    return Weighed(*per_anchor, *(figure.reshape(1) for figure in batch))


@contextmanager
def _in_eval_mode(loss: ContrastiveLoss) -> Iterator[None]:
    """State per sample does not change within it."""
    training = loss.training
    loss.eval()
    try:
        yield
    finally:
        loss.train(training)


@dataclass(frozen=True)
class _Side:
    """Anchors with their positives, row by row, and the columns that hold their negatives."""

    items: Tensor
    anchors: Tensor
    positives: Tensor
    columns: Tensor
    row_groups: Tensor
    column_groups: Tensor
    """Columns of an anchor's own group (itself, its positive, duplicates) are not its negatives."""

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Items (n,), positives (n,), negatives (n, K) with −inf where a column is none, and the
        anchors' positions (n,)."""
        rows = max(1, CHUNK // len(self.columns))
        for start in range(0, len(self.anchors), rows):
            here = slice(start, start + rows)
            same = self.row_groups[here, None] == self.column_groups
            neg = (self.anchors[here] @ self.columns.T).masked_fill(same, -math.inf)
            pos = (self.anchors[here] * self.positives[here]).sum(1)
            contrasted = ~same.all(1)
            positions = start + contrasted.nonzero()[:, 0]
            yield self.items[here][contrasted], pos[contrasted], neg[contrasted], positions


def _sides(
    loss: ContrastiveLoss,
    z1: Tensor,
    z2: Tensor,
    items: Tensor,
    bank: Tensor | None,
    groups: Tensor | None,
    hard: Tensor | None,
    hard_groups: Tensor | None,
) -> list[_Side]:
    """The directions in which the loss contrasts a batch."""
    u1, u2 = unit_rows(z1, "z1"), unit_rows(z2, "z2")
    own = torch.arange(len(u1), device=u1.device) if groups is None else groups

    def ungrouped(rows: Tensor) -> Tensor:
        return own.new_full((len(rows),), -1)

    if bank is not None:
        columns = unit_rows(bank, "bank").to(u1.dtype)
        return [_Side(items, u1, u2, columns, own, ungrouped(columns))]
    if loss.negatives == "both":
        both, twice = torch.cat([u1, u2]), own.repeat(2)
        return [_Side(items.repeat(2), both, torch.cat([u2, u1]), both, twice, twice)]
    columns, column_groups = u2, own
    if hard is not None:
        columns = torch.cat([u2, unit_rows(hard, "hard").to(u2.dtype)])
        theirs = ungrouped(hard) if hard_groups is None else hard_groups
        column_groups = torch.cat([own, theirs])
    sides = [_Side(items, u1, u2, columns, own, column_groups)]
    if loss.symmetric:
        sides.append(_Side(items, u2, u1, u1, own, own))
    return sides


def _part(
    loss: ContrastiveLoss,
    temperature: Tensor,
    logits: Logits,
    items: Tensor,
    pos: Tensor,
    neg: Tensor,
) -> tuple[Tensor, ...]:
    """The per-anchor entries of `Weighed`, in their order; `temperature` is (n,)."""
    count = neg.isfinite().sum(1)
    margin, carried, pushed = _pull(loss, temperature, logits, pos, neg, count)
    positive, negative = logit(pos, logits), _masked_logit(neg, logits)
    most = int(count.max()) if len(count) else 1
    top = geometry.negative_weights(negative, 1.0).topk(math.ceil(0.05 * most), dim=1).values
    return (
        items,
        margin,
        carried,
        pushed,
        geometry.gradient_scale(positive, negative, 2.0),
        count.to(pos.dtype),
        geometry.entropy(negative, 1.0),
        top[:, : math.ceil(0.01 * most)].sum(1),
        top.sum(1),
        temperature,
    )


def _masked_logit(neg: Tensor, logits: Logits) -> Tensor:
    """(n, K) logits, −inf where a column is no negative: a map is not defined there."""
    masked = neg.isneginf()
    return logit(neg.masked_fill(masked, 0.0), logits).masked_fill(masked, -math.inf)


class _Masked(Explicit):
    """Similarities of which some, −inf, are no negatives."""

    def logsumexp(self, logits: Logits) -> Tensor:
        return torch.logsumexp(_masked_logit(self.negatives, logits), dim=1)


def _pull(
    loss: ContrastiveLoss,
    temperature: Tensor,
    logits: Logits,
    pos: Tensor,
    neg: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Margin and the factors of positive and negatives, (n,) each.

    The derivative of the loss itself serves every loss alike. That of the negatives is taken in
    the direction in which all similarities of an anchor rise together.
    """
    with torch.enable_grad():
        pos = pos.detach().requires_grad_()
        rise = torch.zeros_like(pos).requires_grad_()
        pairs = _Masked(pos, neg + rise[:, None])
        pairs.count = count.to(pos.dtype)  # the columns without those that are masked
        margin = pairs.margin(logits)
        value = loss.objective(pairs, logits, margin).sum()
        pull, push = torch.autograd.grad(value, (pos, rise))
    factor = 1.0 if loss.scales_with_temperature else temperature
    return margin.detach(), -factor * pull, factor * push
