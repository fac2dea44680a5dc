"""The geometry of embeddings on the sphere: spread, rank, and neighbors of one class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from macl import geometry
from macl.losses.unit import unit_rows

ROWS = 4096
"""The most rows that are compared all with all; of more, evenly spaced ones are taken."""

DEAD = 0.01
"""A dimension is dead when its deviation is below this part of 1/√D, its share in a unit row."""


@dataclass(frozen=True)
class Space:
    """Geometry of embeddings, beside that of as many random directions of the same width."""

    items: int
    dimensions: int
    uniformity: float
    random_uniformity: float
    mean_similarity: float
    """Mean cosine of distinct items."""
    effective_rank: float
    random_rank: float
    dead_dimensions: int
    """Dimensions that do not vary."""
    tolerance: float | None = None
    """Mean cosine of distinct items of one class."""
    contrast: float | None = None
    """Mean cosine of items of different classes."""

    @property
    def relative_uniformity(self) -> float:
        """1 where items are distributed as random directions, 0 where all are one point."""
        return self.uniformity / self.random_uniformity

    @property
    def relative_rank(self) -> float:
        """Effective rank over that of random directions."""
        return self.effective_rank / self.random_rank

    def evidence(self, *names: str) -> dict[str, float]:
        """Some of its figures by name."""
        return {name: getattr(self, name) for name in names}


@torch.no_grad()
def describe(z: Tensor, labels: Tensor | None = None) -> Space:
    """Measure (N, D) embeddings, N ≥ 2, with (N,) classes where they are known."""
    step = math.ceil(len(z) / ROWS)
    z = unit_rows(z[::step], "embeddings")
    n, d = z.shape
    noise = unit_rows(torch.randn(n, d, generator=torch.Generator().manual_seed(0)), "noise")
    one_class = torch.zeros(n, dtype=torch.int64, device=z.device)
    similarity = geometry.tolerance(z, one_class).item()
    same, different = (None, None) if labels is None else _by_class(z, labels[::step], similarity)
    return Space(
        items=n,
        dimensions=d,
        uniformity=geometry.uniformity(z).item(),
        random_uniformity=geometry.uniformity(noise).item(),
        mean_similarity=similarity,
        effective_rank=geometry.effective_rank(z).item() if bool(z.any()) else 0.0,
        random_rank=geometry.effective_rank(noise).item(),
        dead_dimensions=int((z.std(0) < DEAD / math.sqrt(d)).sum()),
        tolerance=same,
        contrast=different,
    )


def _by_class(z: Tensor, labels: Tensor, mean: float) -> tuple[float | None, float | None]:
    """Mean cosines within and between classes, from that of all pairs; None without such pairs."""
    counts = torch.unique(labels, return_counts=True)[1]
    within, pairs = int((counts * (counts - 1)).sum()), len(z) * (len(z) - 1)
    if within == 0:
        return None, None
    same = geometry.tolerance(z, labels).item()
    return same, None if within == pairs else (pairs * mean - within * same) / (pairs - within)


@torch.no_grad()
def false_negatives(z1: Tensor, z2: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """How often a negative is of its anchor's own class, anchors of z1 against all items of z2.

    Among all negatives, the hardest 1% and 5%, and their share of the whole weight. The sample
    stands for the negatives of a batch or a queue.
    """
    step = math.ceil(len(z1) / ROWS)
    z1, z2 = unit_rows(z1[::step], "z1"), unit_rows(z2[::step], "z2")
    labels = labels[::step].to(z1.device)
    n = len(z1)
    weights = geometry.negative_weights((z1 @ z2.T).fill_diagonal_(-math.inf), temperature)
    same = (labels[:, None] == labels).fill_diagonal_(False).to(weights.dtype)
    hardest = weights.topk(math.ceil(0.05 * (n - 1)), dim=1).indices
    among = same.gather(1, hardest)
    return {
        "false_negatives": same.sum().item() / (n * (n - 1)),
        "false_negatives_in_top_1%": among[:, : math.ceil(0.01 * (n - 1))].mean().item(),
        "false_negatives_in_top_5%": among.mean().item(),
        "weight_of_false_negatives": (weights * same).sum(1).mean().item(),
    }
