"""Contrastive losses as slow, obvious loops over rows, for the tests of the methods."""

from __future__ import annotations

import math

from torch import Tensor


def similarity(a: Tensor, b: Tensor) -> float:
    """Cosine, one product at a time."""
    dot = math.fsum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    return dot / (math.hypot(*a.tolist()) * math.hypot(*b.tolist()))


def info_nce(anchor: Tensor, positive: Tensor, negatives: list[Tensor], tau: float) -> float:
    """−log of the positive's share of the exponentials."""
    own = math.exp(similarity(anchor, positive) / tau)
    others = math.fsum(math.exp(similarity(anchor, row) / tau) for row in negatives)
    return -math.log(own / (own + others))


def nt_xent(z1: Tensor, z2: Tensor, tau: float) -> float:
    """The mean over 2N anchors, each with the 2N − 2 rows of the other samples as negatives."""
    n = len(z1)
    values = []
    for i in range(n):
        for anchor, positive in ((z1[i], z2[i]), (z2[i], z1[i])):
            negatives = [view[j] for view in (z1, z2) for j in range(n) if j != i]
            values.append(info_nce(anchor, positive, negatives, tau))
    return math.fsum(values) / len(values)


def nearest(row: Tensor, bank: Tensor) -> Tensor:
    """The row of the bank with the largest cosine."""
    return max(bank, key=lambda other: similarity(row, other))
