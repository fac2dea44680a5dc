"""Losses with temperatures per pair, per sample, learned and none, as slow float64 loops.

Each function takes the similarities of one anchor and returns its value and the derivatives by
them, in closed form, written from the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reference import Anchor, Result, Vector, chained, similarities

OneAnchor = tuple[float, float, Vector]
"""Value, derivative by s⁺, derivatives by the s_j."""
ByAnchor = Callable[[float, Vector], OneAnchor]


def evaluate(
    formula: ByAnchor, rows: list[Vector], anchors: list[Anchor], weights: Vector
) -> tuple[Vector, list[Vector]]:
    """Values per anchor and the gradient of Σ weights·values by every row."""
    found = [formula(s, others) for s, others in zip(*similarities(rows, anchors), strict=True)]
    result = Result([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])
    return result.values, chained(rows, anchors, result, weights)


def info_nce_of_map(logit: Callable[[float], float], slope: Callable[[float], float]) -> ByAnchor:
    """InfoNCE of l = g(s)."""

    def formula(s: float, others: Vector) -> OneAnchor:
        if not others:
            return 0.0, 0.0, []
        exponentials = [math.exp(logit(o) - logit(s)) for o in others]
        total = math.fsum(exponentials)
        share = 1 / (1 + total)
        d_negatives = [e * share * slope(o) for e, o in zip(exponentials, others, strict=True)]
        return math.log1p(total), -total * share * slope(s), d_negatives

    return formula


def dystress(lowest: float, highest: float) -> ByAnchor:
    """τ(s) = lowest + ½Δ(1 + cos π(1 + s)), held fixed in the gradient."""

    def tau(s: float) -> float:
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * (1 + s))) / 2

    return info_nce_of_map(lambda s: s / tau(s), lambda s: 1 / tau(s))


def shifted_dystress(lowest: float, highest: float, shift: float, width: float) -> ByAnchor:
    """τ = highest above the shift, a cosine below it."""

    def tau(s: float) -> float:
        wave = 1.0 if s > shift else (1 + math.cos(math.pi * (s - shift) / width)) / 2
        return lowest + (highest - lowest) * wave

    return info_nce_of_map(lambda s: s / tau(s), lambda s: 1 / tau(s))


def temperature_free() -> ByAnchor:
    """l = log((1 + s)/(1 − s))."""
    return info_nce_of_map(lambda s: math.log((1 + s) / (1 - s)), lambda s: 2 / (1 - s * s))


def softplus(x: float) -> float:
    """log(1 + eˣ)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    """1/(1 + e⁻ˣ)."""
    return 1 / (1 + math.exp(-x))


def siglip(t: float, b: float) -> ByAnchor:
    """−log σ(y(ts + b)), summed over the pairs of the anchor."""

    def formula(s: float, others: Vector) -> OneAnchor:
        value = softplus(-(t * s + b)) + math.fsum(softplus(t * o + b) for o in others)
        return value, -t * sigmoid(-(t * s + b)), [t * sigmoid(t * o + b) for o in others]

    return formula


def siglip_parameters(
    t: float, b: float, positives: Vector, negatives: list[Vector], weights: Vector
) -> tuple[float, float]:
    """∂/∂t' and ∂/∂b of Σ weights·values."""
    by_scale = by_bias = 0.0
    for w, s, others in zip(weights, positives, negatives, strict=True):
        r = sigmoid(-(t * s + b))
        by_scale -= w * t * r * s
        by_bias -= w * r
        for o in others:
            r = sigmoid(t * o + b)
            by_scale += w * t * r * o
            by_bias += w * r
    return by_scale, by_bias


@dataclass
class Rule:
    """A loss of the whole data set, see `global_step`."""

    gamma: float
    paired: bool
    tau: float = 0.1
    rho: float = 0.0
    by_tau: bool = True
    """Value τ·log u; without, log u."""
    epsilon: float = 0.0
    update: Callable[[Tables, int, float], None] | None = None


@dataclass
class Tables:
    """State by slot."""

    u: dict[int, float] = field(default_factory=dict)
    tau: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    second: dict[int, float] = field(default_factory=dict)
    visits: dict[int, int] = field(default_factory=dict)


@dataclass
class Step:
    """What a batch gives."""

    result: Result
    gradients: Vector
    """∂F/∂τ of each anchor."""


def global_step(
    rule: Rule,
    tables: Tables,
    slots: list[int],
    positives: Vector,
    negatives: list[Vector],
    taus: Vector | None = None,
) -> Step:
    """Values and derivatives of a batch; the tables move on afterwards."""
    result, gradients = Result([], [], []), []
    new_u: dict[int, Vector] = {}
    new_g: dict[int, Vector] = {}
    for i, (slot, s, others) in enumerate(zip(slots, positives, negatives, strict=True)):
        if not others:
            result.values.append(0.0)
            result.d_positive.append(0.0)
            result.d_negatives.append([])
            gradients.append(0.0)
            continue
        tau = taus[i] if taus is not None else tables.tau.get(slot, rule.tau)
        logits = [(o - s if rule.paired else o) / tau for o in others]
        k = len(others)
        g = math.fsum(math.exp(v) for v in logits) / k
        u = g if slot not in tables.u else (1 - rule.gamma) * tables.u[slot] + rule.gamma * g
        held = rule.epsilon + u
        factor = tau if rule.by_tau else 1.0
        # ∂(factor·log u)/∂s_j with u's derivative that of g (no factor γ).
        d_negatives = [factor * math.exp(v) / (k * held * tau) for v in logits]
        value = factor * (math.log(held) + rule.rho)
        d_positive = -math.fsum(d_negatives)
        if not rule.paired:
            value, d_positive = value - s, -1.0
        mean = math.fsum(math.exp(v) / held * v for v in logits) / k
        by_tau = math.log(held) + rule.rho - mean
        result.values.append(value)
        result.d_positive.append(d_positive)
        result.d_negatives.append(d_negatives)
        gradients.append(by_tau if rule.by_tau else -mean / tau)
        new_u.setdefault(slot, []).append(u)
        new_g.setdefault(slot, []).append(by_tau)
    for slot, values in new_u.items():
        tables.u[slot] = math.fsum(values) / len(values)
        if rule.update is not None:
            rule.update(tables, slot, math.fsum(new_g[slot]) / len(values))
    return Step(result, gradients)


def momentum(
    start: float, lowest: float, highest: float, beta: float, eta: float, clip: float
) -> Callable[[Tables, int, float], None]:
    """iSogCLR's step of τ."""

    def update(tables: Tables, slot: int, gradient: float) -> None:
        gradient = min(max(gradient, -clip), clip)
        m = (1 - beta) * tables.first.get(slot, 0.0) + beta * gradient
        tau = tables.tau.get(slot, start) - eta * m
        tables.first[slot], tables.tau[slot] = m, min(max(tau, lowest), highest)

    return update


def adam(
    start: float, lowest: float, highest: float, eta: float, clip: float
) -> Callable[[Tables, int, float], None]:
    """FastCLIP v2's step of τ."""

    def update(tables: Tables, slot: int, gradient: float) -> None:
        gradient = min(max(gradient, -clip), clip)
        t = tables.visits[slot] = tables.visits.get(slot, 0) + 1
        m = tables.first[slot] = 0.9 * tables.first.get(slot, 0.0) + 0.1 * gradient
        v = tables.second[slot] = 0.999 * tables.second.get(slot, 0.0) + 0.001 * gradient**2
        step = (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        tables.tau[slot] = min(max(tables.tau.get(slot, start) - eta * step, lowest), highest)

    return update


def sup_con(
    form: str, tau: float, units: list[Vector], i: int, positives: list[int], others: list[int]
) -> tuple[float, dict[int, float]]:
    """Value of one anchor and its derivatives by the similarities to other rows."""
    s = {
        j: math.fsum(a * b for a, b in zip(units[i], units[j], strict=True))
        for j in positives + others
    }
    total = math.fsum(math.exp(v / tau) for v in s.values())
    probability = {j: math.exp(v / tau) / total for j, v in s.items()}
    if form == "out":
        value = -math.fsum(math.log(probability[p]) for p in positives) / len(positives)
        slopes = {
            j: p - (1 / len(positives) if j in positives else 0) for j, p in probability.items()
        }
    else:
        share = math.fsum(probability[p] for p in positives)
        value = -math.log(share / len(positives))
        slopes = {j: p - (p / share if j in positives else 0) for j, p in probability.items()}
    return value, {j: v / tau for j, v in slopes.items()}
