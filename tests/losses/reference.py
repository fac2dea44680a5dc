"""The family once more, as slow, obvious float64 loops: no tensors, no masks, no autograd.

An anchor is a row, its positive row and the list of its negative rows. Every value is written as
in its paper and every gradient in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Vector = list[float]


@dataclass(frozen=True)
class Loss:
    """One member of the family with its numbers."""

    objective: str
    tau: float = 0.1
    alpha: float = 0.0
    threshold: float = 0.0
    beta: float = 1.0
    tau_plus: float = 0.1
    sigma: float = 0.5


@dataclass(frozen=True)
class Anchor:
    """Indices into one table of rows."""

    row: int
    positive: int
    negatives: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """Per anchor: the value and its derivatives by the similarities."""

    values: Vector
    d_positive: Vector
    d_negatives: list[Vector]


class NearKink(Exception):
    """HCL's clamp is about to switch: the gradient is not defined to rounding."""


def both_views(n: int, groups: list[int] | None) -> list[Anchor]:
    """Table: z1 (n rows), z2 (n rows). 2n anchors; negatives from both views."""
    anchors = []
    for row in range(2 * n):
        negatives = [
            other
            for other in range(2 * n)
            if other % n != row % n and not _same(groups, row % n, groups, other % n)
        ]
        anchors.append(Anchor(row, (row + n) % (2 * n), tuple(negatives)))
    return anchors


def cross_view(
    n: int,
    groups: list[int] | None,
    symmetric: bool,
    hard: int = 0,
    hard_groups: list[int] | None = None,
) -> list[Anchor]:
    """Table: z1, z2, then `hard` further negatives of the first view's anchors."""
    anchors = []
    for i in range(n):
        others = [n + j for j in range(n) if j != i and not _same(groups, i, groups, j)]
        extra = [2 * n + h for h in range(hard) if not _same(groups, i, hard_groups, h)]
        anchors.append(Anchor(i, n + i, tuple(others + extra)))
    if symmetric:
        for i in range(n):
            others = [j for j in range(n) if j != i and not _same(groups, i, groups, j)]
            anchors.append(Anchor(n + i, i, tuple(others)))
    return anchors


def bank_view(
    n: int, bank: int, groups: list[int] | None, bank_groups: list[int] | None
) -> list[Anchor]:
    """Table: z1, z2, then the bank's rows."""
    return [
        Anchor(
            i,
            n + i,
            tuple(2 * n + k for k in range(bank) if not _same(groups, i, bank_groups, k)),
        )
        for i in range(n)
    ]


def _same(left: list[int] | None, i: int, right: list[int] | None, j: int) -> bool:
    return left is not None and right is not None and left[i] == right[j]


def unit(row: Vector) -> Vector:
    """The row at length 1; a zero row stays zero."""
    length = math.sqrt(math.fsum(v * v for v in row))
    return [v / length for v in row] if length > 0 else [0.0 for _ in row]


def dot(a: Vector, b: Vector) -> float:
    """Σ a·b."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def loss_and_gradient(
    loss: Loss, rows: list[Vector], anchors: list[Anchor], weights: Vector
) -> tuple[Vector, list[Vector]]:
    """Values per anchor and the gradient of Σ_i weights_i·value_i by every row of the table."""
    result = by_similarity(loss, *similarities(rows, anchors))
    return result.values, chained(rows, anchors, result, weights)


def similarities(rows: list[Vector], anchors: list[Anchor]) -> tuple[Vector, list[Vector]]:
    """Of each anchor: its positive's, and the list of its negatives'."""
    units = [unit(row) for row in rows]
    positives = [dot(units[a.row], units[a.positive]) for a in anchors]
    return positives, [[dot(units[a.row], units[j]) for j in a.negatives] for a in anchors]


def chained(
    rows: list[Vector], anchors: list[Anchor], result: Result, weights: Vector
) -> list[Vector]:
    """The gradient of Σ_i weights_i·value_i by every row, from those by the similarities."""
    units = [unit(row) for row in rows]
    d_units = [[0.0] * len(row) for row in rows]
    for i, anchor in enumerate(anchors):
        pairs = [(anchor.positive, result.d_positive[i])]
        pairs += list(zip(anchor.negatives, result.d_negatives[i], strict=True))
        for other, derivative in pairs:
            for d in range(len(rows[0])):
                d_units[anchor.row][d] += weights[i] * derivative * units[other][d]
                d_units[other][d] += weights[i] * derivative * units[anchor.row][d]
    gradient = []
    for row, u, du in zip(rows, units, d_units, strict=True):
        length = math.sqrt(math.fsum(v * v for v in row))
        radial = dot(u, du)
        gradient.append(
            [(g - radial * v) / length for g, v in zip(du, u, strict=True)]
            if length > 0
            else [0.0 for _ in row]
        )
    return gradient


def by_similarity(loss: Loss, positives: Vector, negatives: list[Vector]) -> Result:
    """The family on similarities. τ_a = τ₀[1 + α(A − A₀)] with A the mean positive similarity."""
    alignment = math.fsum(positives) / len(positives)
    tau = loss.tau * (1 + loss.alpha * (alignment - loss.threshold))
    tau = max(tau, loss.tau / 10)
    mean_raised = math.fsum(math.exp(s / loss.sigma) for s in positives) / len(positives)
    values, d_positive, d_negatives = [], [], []
    for s, others in zip(positives, negatives, strict=True):
        if not others:
            values.append(0.0)
            d_positive.append(0.0)
            d_negatives.append([])
            continue
        if loss.objective == "hcl":
            value, dp, dn = _hcl(loss, tau, s, others)
        else:
            value, dp, dn = _of_margin(loss, tau, s, others, mean_raised)
        values.append(value)
        d_positive.append(dp)
        d_negatives.append(dn)
    return Result(values, d_positive, d_negatives)


def margin(tau: float, s: float, others: Vector) -> float:
    """x = log Σ exp(s_j/τ) − s⁺/τ."""
    return math.log(math.fsum(math.exp(o / tau) for o in others)) - s / tau


def _of_margin(
    loss: Loss, tau: float, s: float, others: Vector, mean_raised: float
) -> tuple[float, float, Vector]:
    x = margin(tau, s, others)
    total = math.fsum(math.exp(o / tau) for o in others)
    nll = math.log1p(total / math.exp(s / tau))  # −log P, P = e^{s⁺/τ} / (e^{s⁺/τ} + Σ)
    scale = 1 / (1 + math.exp(-x))  # W
    dx_positive = -1 / tau
    dx_negatives = [math.exp(o / tau) / total / tau for o in others]
    if loss.objective == "dclw":
        w = 2 - math.exp(s / loss.sigma) / mean_raised
        return math.log(total) - w * s / tau, w * dx_positive, dx_negatives
    if loss.objective == "info_nce":
        value, factor = nll, scale
    elif loss.objective == "dcl":
        value, factor = x, 1.0
    elif loss.objective == "flat_nce":
        value, factor = 1.0, 1.0
    elif loss.objective == "reweighted":
        value, factor = nll / scale, 1.0
    elif loss.objective == "dual":
        factor = 1 / (1 + math.exp(-margin(loss.beta * tau, s, others)))
        value = factor / scale * nll
    else:
        raise KeyError(loss.objective)
    return value, factor * dx_positive, [factor * d for d in dx_negatives]


def _hcl(loss: Loss, tau: float, s: float, others: Vector) -> tuple[float, float, Vector]:
    k, beta, prior = len(others), loss.beta, loss.tau_plus
    positive = math.exp(s / tau)
    weights = [math.exp(beta * o / tau) for o in others]
    mean = math.fsum(weights) / k
    reweighed = math.fsum(
        w / mean * math.exp(o / tau) for w, o in zip(weights, others, strict=True)
    )
    debiased = (reweighed - prior * k * positive) / (1 - prior)
    floor = k * math.exp(-1 / tau)
    if abs(debiased - floor) < 1e-3 * (reweighed + floor):
        raise NearKink
    ng = max(debiased, floor)
    value = -math.log(positive / (positive + ng))
    share = 1 / (positive + ng)
    if debiased < floor:
        return value, positive / tau * share - 1 / tau, [0.0] * k
    d_positive = (positive - prior * k * positive / (1 - prior)) / tau * share - 1 / tau
    d_negatives = []
    for w, o in zip(weights, others, strict=True):
        d_weight = beta / tau * w
        d_mean = d_weight / k
        d_reweighed = (d_weight + w / tau) / mean * math.exp(o / tau) - reweighed / mean * d_mean
        d_negatives.append(d_reweighed / (1 - prior) * share)
    return value, d_positive, d_negatives
