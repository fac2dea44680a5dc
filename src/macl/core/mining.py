"""Hard negatives and near-duplicates among vectors, a block of similarities at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from macl.core.similarity import MOST_PRODUCTS, product_blocks

MOST_DUPLICATES = 100
"""Near-duplicates of one row that are listed."""


class Rules(NamedTuple):
    """Which candidates may become negatives of an anchor."""

    k: int = 1
    """Negatives of an anchor, at most."""
    ranks: tuple[int, int] = (1, 100)
    """First and last place among the candidates, 1 being the most similar."""
    margin: float | None = None
    """A negative is less similar to the anchor than its positive by this; None: no matter."""
    relative: bool = False
    """The margin is a share of the positive's similarity."""


class Space(NamedTuple):
    """Anchors, their positives and the candidates as unit rows of one encoder."""

    anchors: Tensor
    """(Q, D)."""
    candidates: Tensor
    """(C, D)."""
    positives: Tensor | None = None
    """(Q,) positions of the positives among the candidates."""

    def limit(self, rows: slice, rules: Rules) -> Tensor:
        """(n, 1) the largest similarity that the rules allow to negatives of the anchors `rows`."""
        assert self.positives is not None
        positives = self.candidates[self.positives[rows]]
        positive = (self.anchors[rows] * positives).sum(1, keepdim=True)
        margin = rules.margin or 0.0
        return positive - (positive.abs() * margin if rules.relative else margin)

    def too_similar(self, rows: slice, columns: Tensor, rules: Rules) -> Tensor:
        """(n, m) whether the candidates at `columns` exceed that limit."""
        similarity = torch.einsum("nd,nmd->nm", self.anchors[rows], self.candidates[columns])
        return similarity > self.limit(rows, rules)


class Found(NamedTuple):
    """Pairs of positions, and what they were chosen from."""

    rows: Tensor
    """(M,) positions of anchors, ascending."""
    columns: Tensor
    """(M,) positions of candidates, for each anchor the most similar first."""
    scores: Tensor
    """(M,) their similarities."""
    false_share: float | None = None
    """Share of false negatives among what would be taken without labels and guide, if given."""


def hard_negatives(
    space: Space,
    groups: tuple[Tensor, Tensor],
    rules: Rules,
    *,
    labels: tuple[Tensor, Tensor] | None = None,
    guide: Space | None = None,
    false_only: bool = False,
    most: int = MOST_PRODUCTS,
) -> Found:
    """For each anchor the most similar candidates that the rules allow.

    Args:
        space: of the encoder that finds them.
        groups: (Q,) and (C,); a candidate of the anchor's group is the same text or a positive.
        labels: (Q,) and (C,) classes; a candidate of the anchor's class is a false negative.
        guide: of another encoder; a candidate that it finds too similar, by the rules' margin or
            more similar than the positive, is a false negative.
        false_only: instead, the false negatives among the most similar candidates.
        most: similarities held at once.
    """

    def false_negatives(rows: slice, columns: Tensor) -> Tensor:
        false = torch.zeros_like(columns, dtype=torch.bool)
        if labels is not None:
            false |= labels[0][rows, None] == labels[1][columns]
        if guide is not None:
            false |= guide.too_similar(rows, columns, rules)
        return false

    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    false = looked = 0
    for start, products, mask in _blocks(space.anchors, space.candidates, most):
        rows = slice(start, start + len(products))
        scores, columns = _ranked(products, mask, groups[0][rows], groups[1], rules)
        taken = scores[:, : rules.k].isfinite()
        allowed = false_negatives(rows, columns[:, : rules.k]) & taken
        false += int(allowed.sum())
        looked += int(taken.sum())
        if not false_only:
            if labels is not None:  # they must not take the places of others
                scores, columns = _ranked(products, mask, labels[0][rows], labels[1], rules)
            allowed = scores.isfinite() & ~false_negatives(rows, columns)
            if rules.margin is not None:
                allowed &= scores <= space.limit(rows, rules)
            allowed &= allowed.cumsum(1) <= rules.k
        chosen, place = allowed.nonzero(as_tuple=True)
        blocks.append((chosen + start, columns[chosen, place], scores[chosen, place]))
    judged = looked and (labels is not None or guide is not None)
    return _joined(blocks, false / looked if judged else None)


def _blocks(queries: Tensor, keys: Tensor, most: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """`product_blocks`, each with a mask of its shape to write to, in the same memory for all.

    With a mask for each, between which results are kept, the heap would grow with their number.
    """
    mask = torch.empty(0)
    for start, products in product_blocks(queries, keys, most):
        mask = mask if start else torch.empty_like(products, dtype=torch.bool)
        yield start, products, mask[: len(products)]


def _ranked(
    products: Tensor, mask: Tensor, own: Tensor, others: Tensor, rules: Rules
) -> tuple[Tensor, Tensor]:
    """Scores and columns at the rules' ranks, without candidates of the anchor's own kind."""
    torch.eq(own[:, None], others, out=mask)
    products.masked_fill_(mask, -torch.inf)
    first, last = rules.ranks
    scores, columns = products.topk(min(last, products.shape[1]), dim=1)
    return scores[:, first - 1 :], columns[:, first - 1 :]


def near_duplicates(vectors: Tensor, threshold: float, most: int = MOST_PRODUCTS) -> Found:
    """Pairs i < j of (N, D) unit rows that are this similar, at most `MOST_DUPLICATES` for an i."""
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    places = torch.arange(len(vectors), device=vectors.device)
    for start, products, mask in _blocks(vectors, vectors, most):
        torch.le(places, places[start : start + len(products), None], out=mask)
        products.masked_fill_(mask, -torch.inf)
        scores, columns = products.topk(min(MOST_DUPLICATES, len(vectors)), dim=1)
        row, place = (scores >= threshold).nonzero(as_tuple=True)
        blocks.append((row + start, columns[row, place], scores[row, place]))
    return _joined(blocks)


def _joined(blocks: list[tuple[Tensor, Tensor, Tensor]], share: float | None = None) -> Found:
    rows, columns, scores = (torch.cat(part).cpu() for part in zip(*blocks, strict=True))
    return Found(rows, columns, scores, share)
