"""Who is contrasted with whom, and the losses of several positives, as float64 loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Batch:
    """What a loss is called with; rows of the table are z1, z2 and the further rows, in order."""

    form: str
    """both, cross, one-direction, bank or hard."""
    z1: Tensor
    z2: Tensor
    extra: Tensor
    labels: list[set[int]] | None = None
    """Of each sample."""
    listed: list[tuple[int, int, float]] | None = None
    groups: list[int] | None = None
    extra_groups: list[int] | None = None
    guide: tuple[Tensor, ...] | None = None
    margin: float = 0.0
    relative: bool = False

    def table(self) -> Tensor:
        return F.normalize(torch.cat([self.z1, self.z2, self.extra]), dim=1)


@dataclass
class Anchor:
    row: int
    positives: list[tuple[int, float]] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)


def anchors_of(batch: Batch) -> list[Anchor]:
    n, m = len(batch.z1), len(batch.z2)
    found = []
    sides = {"both": (0, 1), "cross": (0, 1), "hard": (0, 1)}.get(batch.form, (0,))
    for side in sides:
        for i in range((n, m)[side]):
            anchor = Anchor(i + side * n)
            for other in (0, 1):
                if other == side and batch.form != "both":
                    continue
                for j in range((n, m)[other]):
                    _add(batch, anchor, side, i, other, j)
            if batch.form == "bank" or (batch.form == "hard" and side == 0):
                for k in range(len(batch.extra)):
                    if not _same_group(batch, i, k) and not _guided(batch, side, i, 2, k):
                        anchor.negatives.append(n + m + k)
            found.append(anchor)
    return found


def _add(batch: Batch, anchor: Anchor, side: int, i: int, other: int, j: int) -> None:
    if (side, i) == (other, j):
        return
    column, weight = j + other * len(batch.z1), _weight(batch, side, i, other, j)
    if weight is not None:
        anchor.positives.append((column, weight))
        return
    if batch.form == "bank":
        return
    if batch.groups is not None and batch.groups[i] == batch.groups[j]:
        return
    if not _guided(batch, side, i, other, j):
        anchor.negatives.append(column)


def _weight(batch: Batch, side: int, i: int, other: int, j: int) -> float | None:
    """Of a positive pair; None for a pair that is not one."""
    if batch.labels is not None:
        return 1.0 if batch.labels[i] & batch.labels[j] else None
    if batch.listed is None:
        return 1.0 if i == j and side != other else None
    if side == other:
        return None
    pair = (i, j) if side == 0 else (j, i)
    weights = [w for r, c, w in batch.listed if (r, c) == pair]
    return math.fsum(weights) if weights else None


def _same_group(batch: Batch, i: int, k: int) -> bool:
    if batch.groups is None or batch.extra_groups is None:
        return False
    return batch.groups[i] == batch.extra_groups[k]


def _guided(batch: Batch, side: int, i: int, other: int, j: int) -> bool:
    if batch.guide is None or other >= len(batch.guide):
        return False
    views = [F.normalize(g.double(), dim=1) for g in batch.guide]
    own = float(views[side][i] @ views[1 - side][i])
    bound = own * (1 - batch.margin) if batch.relative else own - batch.margin
    return float(views[side][i] @ views[other][j]) > bound


def _mean(values: Sequence[tuple[Tensor, float]]) -> Tensor:
    return torch.stack([v * w for v, w in values]).sum() / sum(w for _, w in values)


def loss_of(name: str, batch: Batch, tau: float = 0.3) -> Tensor:
    """The mean loss, in plain torch, with gradient; anchors without positives do not count."""
    table, anchors = batch.table(), anchors_of(batch)
    s = [
        (
            [(table[a.row] @ table[p], w) for p, w in a.positives],
            [table[a.row] @ table[k] for k in a.negatives],
        )
        for a in anchors
    ]
    if name == "SigLIP":
        values = []
        for positives, negatives in s:
            terms = [w * F.softplus(-(x / tau - 10)) for x, w in positives]
            terms += [F.softplus(x / tau - 10) for x in negatives]
            values.append(torch.stack(terms).sum() if terms else table.new_zeros(()))
        return torch.stack(values).mean()
    if name == "MACL":  # α = 1, A₀ = 0
        means = [_mean(p).detach() if p else table.new_zeros(()) for p, _ in s]
        tau = max(tau * (1 + float(torch.stack(means).mean())), tau / 10)
    values = []
    for positives, negatives in s:
        if not positives:
            continue
        if name == "SupCon":
            everything = torch.stack([*(x for x, _ in positives), *negatives]) / tau
            values.append(torch.logsumexp(everything, 0) - _mean(positives) / tau)
            continue
        if not negatives:
            values.append(table.new_zeros(()))
            continue
        lse = torch.logsumexp(torch.stack(negatives) / tau, 0)
        values.append(_mean([(_objective(name, lse - x / tau), w) for x, w in positives]))
    return torch.stack(values).mean()


def _objective(name: str, x: Tensor) -> Tensor:
    if name == "DCL":
        return x
    if name == "MACL":
        return F.softplus(x) / torch.sigmoid(x.detach())
    return F.softplus(x)
