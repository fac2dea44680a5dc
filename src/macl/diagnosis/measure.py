"""How a loss weighs a sample, and how it weighed the batches of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean

import torch
from torch import Tensor

from macl import geometry
from macl.diagnosis.space import false_negatives
from macl.losses import ContrastiveLoss
from macl.losses.build import Inputs
from macl.losses.ops.exclusions import Tile
from macl.losses.ops.maps import Logits, logit
from macl.losses.output import ConfigWarning, LossBehavior, Spread
from macl.losses.pairs import Explicit, Pairs

CHUNK = 2**24
"""The most similarities held at once."""

LOGGED = {"gradient_scale", "alignment", "temperature", "floored", "effective_anchors"}
"""Columns of metrics.csv that a diagnosis reads."""


@dataclass(frozen=True)
class GradientProfile:
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

    @property
    def effective_anchors(self) -> float:
        """ESS = (ΣW)²/(n·ΣW²): the share of anchors that carry the gradient.

        A common factor cancels in it, as it does in the step of Adam and LARS. 0 where all are 0.
        """
        return Spread.of(self.margin, self.temperature).effective_anchors.item()

    def with_more_negatives(self, times: float) -> float:
        """Mean W with that many times the negatives (Proposition 1): σ(x + log times)."""
        return torch.sigmoid(self.margin + math.log(times)).mean().item()

    @classmethod
    def join(cls, parts: Sequence[GradientProfile]) -> GradientProfile:
        """Several batches as one sample."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@torch.no_grad()
def gradient_profile(loss: ContrastiveLoss, inputs: Inputs) -> GradientProfile:
    """One batch as the loss sees it; its `indices` (N,) say which item each row is."""
    if loss.takes_labels:  # rows of one group are positives, where nothing else says which are
        positives = inputs.groups if inputs.positives is None else inputs.positives
        inputs = inputs._replace(groups=None, positives=positives)
    training = loss.training
    loss.eval()  # state per sample does not change
    try:
        pairs = loss.pairs(inputs)
        output = loss.of_pairs(pairs, inputs)
    finally:
        loss.train(training)
    logits, temperature = output.logits, output.temperature.expand(pairs.anchors)
    assert inputs.indices is not None
    items = inputs.indices.repeat(pairs.anchors // len(inputs.indices))
    parts = []
    for rows, neg in _chunks(pairs):
        own = logits[rows] if isinstance(logits, Tensor) and logits.ndim else logits
        part = _part(loss, temperature[rows], own, pairs.positive[rows], neg)
        parts.append((items[rows], *part))
    per_anchor = [torch.cat(column) for column in zip(*parts, strict=True)]
    by_batch = (output.alignment, output.temperature.mean(), output.floored)
    return GradientProfile(*per_anchor, *(value.reshape(1) for value in by_batch))


def _chunks(pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    """(n,) positions of anchors that have negatives, and (n, K) similarities to the columns.

    These are −inf where a column is not a negative. Not with a ring.
    """
    start = 0
    for side in pairs.sides:
        step = max(1, CHUNK // sum(len(block.columns) for block in side.blocks))
        for top in range(0, len(side.rows), step):
            rows, parts = side.rows[top : top + step], []
            for block in side.blocks:
                parts.append(rows @ block.columns.T)
                tile = Tile(top, top + len(rows), 0, len(block.columns))
                block.exclude.apply(parts[-1], tile, -math.inf)
            negatives = torch.cat(parts, 1)
            counted = negatives.isfinite().any(1)
            yield start + top + counted.nonzero().flatten(), negatives[counted]
        start += len(side.rows)


def _part(
    loss: ContrastiveLoss, temperature: Tensor, logits: Logits, pos: Tensor, neg: Tensor
) -> tuple[Tensor, ...]:
    """The per-anchor entries of `GradientProfile` after `items`; `temperature` is (n,)."""
    # That of the negatives is the derivative as all similarities of an anchor rise together.
    with torch.enable_grad():
        own, rise = pos.detach().requires_grad_(), torch.zeros_like(pos).requires_grad_()
        pairs = Explicit(own, neg + rise[:, None], masked=True)
        margin = pairs.margin(logits)
        pull, push = torch.autograd.grad(loss.objective_of(pairs, logits).sum(), (own, rise))
    factor = 1.0 if loss.scales_with_temperature else temperature
    masked = neg.isneginf()  # no negative: a map is not defined there
    count = (~masked).sum(1)
    positive = logit(pos, logits)
    negative = logit(neg.masked_fill(masked, 0.0), logits).masked_fill(masked, -math.inf)
    most = int(count.max()) if len(count) else 1
    top = geometry.negative_weights(negative, 1.0).topk(math.ceil(0.05 * most), dim=1).values
    return (
        margin.detach(),
        -factor * pull,
        factor * push,
        geometry.gradient_scale(positive, negative, 2.0),
        count.to(pos.dtype),
        geometry.entropy(negative, 1.0),
        top[:, : math.ceil(0.01 * most)].sum(1),
        top.sum(1),
        temperature,
    )


@dataclass(frozen=True)
class History:
    """What training logged: (first epoch, last epoch) means, and the range of τ."""

    gradient_scale: tuple[float, float]
    lowest_alignment: float
    temperature: tuple[float, float]
    """(lowest, highest)."""
    floored: float
    """Share of the logged steps in which the temperature's floor was acting."""
    effective_anchors: tuple[float, float]
    """ESS."""

    @classmethod
    def read(cls, rows: Iterable[dict[str, float]]) -> History | None:
        """From the rows of metrics.csv; None where no row has what contrastive methods log."""
        steps = [row for row in rows if row.keys() >= LOGGED]

        def mean(key: str, end: int) -> float:
            return fmean(row[key] for row in steps if row["epoch"] == steps[end]["epoch"])

        if not steps:
            return None
        temperatures = [row["temperature"] for row in steps]
        return cls(
            gradient_scale=(mean("gradient_scale", 0), mean("gradient_scale", -1)),
            lowest_alignment=min(row["alignment"] for row in steps),
            temperature=(min(temperatures), max(temperatures)),
            floored=fmean(row["floored"] for row in steps),
            effective_anchors=(mean("effective_anchors", 0), mean("effective_anchors", -1)),
        )


@dataclass(frozen=True)
class Contrast:
    """What a diagnosis knows of a loss and of whom it contrasts."""

    loss: ContrastiveLoss
    profile: GradientProfile
    views: tuple[Tensor, Tensor]
    """(N, D) each."""
    labels: Tensor | None = None
    """(N,)."""
    names: Sequence[str] | None = None
    """Of the items."""
    has_bank: bool = False
    history: History | None = None
    modality: str | None = None
    """None: unknown."""

    @cached_property
    def confused(self) -> dict[str, float] | None:
        """Rates of false negatives: with labels, and a loss that does not learn from them."""
        if self.labels is None or self.loss.takes_labels:
            return None
        return false_negatives(*self.views, self.labels, self.mean("temperature"))

    def mean(self, name: str) -> float:
        """The mean of a field of the profile."""
        values: Tensor = getattr(self.profile, name)
        return values.mean().item()

    @property
    def negatives_key(self) -> str:
        """The recipe's key that sets the number of negatives."""
        return "method.queue_size" if self.has_bank else "batch_size"

    @cached_property
    def config_warnings(self) -> list[ConfigWarning]:
        """What the loss states about its own settings."""
        own = self.profile
        return self.loss.config_warnings(
            LossBehavior(own.anchor_temperature, own.count, own.carried, own.pushed)
        )
