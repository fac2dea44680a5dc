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

    def threshold(self, positive: Tensor) -> Tensor:
        """(n,) the most that a negative's similarity may be."""
        margin = self.margin or 0.0
        return positive - (positive.abs() * margin if self.relative else margin)


class Space(NamedTuple):
    """Anchors, their positives and the candidates as unit rows of one encoder."""

    anchors: Tensor
    """(Q, D)."""
    candidates: Tensor
    """(C, D)."""
    positives: Tensor | None = None
    """(Q,) positions of the positives among the candidates."""

    def positive_similarity(self, rows: slice) -> Tensor:
        """(n,) of the anchors `rows`."""
        assert self.positives is not None
        return (self.anchors[rows] * self.candidates[self.positives[rows]]).sum(1)


class Found(NamedTuple):
    """Pairs of positions, and what they were chosen from."""

    rows: Tensor
    """(M,) positions of anchors, ascending."""
    columns: Tensor
    """(M,) positions of candidates, for each anchor the most similar first."""
    scores: Tensor
    """(M,) their similarities."""
    false_share: float | None = None
    """Share of false negatives among what would be taken without labels and guide; None where
    neither is given."""


def hard_negatives(
    space: Space,
    groups: tuple[Tensor, Tensor],
    rules: Rules,
    *,
    labels: tuple[Tensor, Tensor] | None = None,
    guide: Space | None = None,
    most: int = MOST_PRODUCTS,
) -> Found:
    """For each anchor the most similar candidates that the rules allow.

    Args:
        space: of the encoder that finds them.
        groups: (Q,) and (C,); a candidate of the anchor's group is the same text or a positive.
        rules: how many, and which.
        labels: (Q,) and (C,) classes; a candidate of the anchor's class is a false negative.
        guide: of another encoder; a candidate that it finds too similar, by the rules' margin or
            more similar than the positive, is a false negative.
        most: similarities held at once.
    """
    first, last = rules.ranks
    width = min(last, len(space.candidates))
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    false = looked = 0
    for start, products, mask in _blocks(space.anchors, space.candidates, most):
        rows = slice(start, start + len(products))
        torch.eq(groups[0][rows, None], groups[1], out=mask)
        products.masked_fill_(mask, -torch.inf)
        scores, columns = _ranked(products, width, first)
        if labels is not None or guide is not None:
            wrong = _excluded(rows, columns, rules, labels, guide) & scores.isfinite()
            false += int(wrong[:, : rules.k].sum())
            looked += int(scores[:, : rules.k].isfinite().sum())
        if labels is not None:  # they must not take the places of others
            torch.eq(labels[0][rows, None], labels[1], out=mask)
            products.masked_fill_(mask, -torch.inf)
            scores, columns = _ranked(products, width, first)
        allowed = scores.isfinite()
        if guide is not None:
            allowed &= ~_excluded(rows, columns, rules, None, guide)
        if rules.margin is not None:
            allowed &= scores <= rules.threshold(space.positive_similarity(rows))[:, None]
        allowed &= allowed.cumsum(1) <= rules.k
        chosen, place = allowed.nonzero(as_tuple=True)
        blocks.append((chosen + start, columns[chosen, place], scores[chosen, place]))
    return _joined(blocks, false / looked if looked else None)


def _blocks(queries: Tensor, keys: Tensor, most: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """`product_blocks`, each with a mask of its shape to write to.

    The mask is the same memory for all: with one for each block, between which results are kept,
    the heap grows with the number of blocks.
    """
    mask: Tensor | None = None
    for start, products in product_blocks(queries, keys, most):
        if mask is None:
            mask = torch.empty_like(products, dtype=torch.bool)
        yield start, products, mask[: len(products)]


def _ranked(products: Tensor, width: int, first: int) -> tuple[Tensor, Tensor]:
    scores, columns = products.topk(width, dim=1)
    return scores[:, first - 1 :], columns[:, first - 1 :]


def _excluded(
    rows: slice,
    columns: Tensor,
    rules: Rules,
    labels: tuple[Tensor, Tensor] | None,
    guide: Space | None,
) -> Tensor:
    """(n, m) whether candidates are false negatives by labels or guide."""
    wrong = torch.zeros(columns.shape, dtype=torch.bool, device=columns.device)
    if labels is not None:
        wrong |= labels[0][rows, None] == labels[1][columns]
    if guide is not None:
        limit = rules.threshold(guide.positive_similarity(rows))
        similarity = torch.einsum("nd,nmd->nm", guide.anchors[rows], guide.candidates[columns])
        wrong |= similarity > limit[:, None]
    return wrong


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
