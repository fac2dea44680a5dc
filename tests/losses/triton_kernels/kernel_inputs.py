"""Inputs and float64 results for the cases of the Triton kernels: one pair at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.losses.ops.exclusions import Exclusions, Relation
from macl.losses.ops.maps import CosineTemperature, InverseTanh


def excluding(
    diagonals: tuple[int, ...] = (),
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    only: bool = False,
) -> Exclusions:
    """Diagonals, and pairs of equal integers; with `only` all other pairs instead."""
    relation = None if rows is None or columns is None else Relation(rows, columns)
    if only:
        return Exclusions(diagonals, classes=relation, only_classes=True)
    return Exclusions(diagonals, relation)


def counts(exclude: Exclusions, i: int, j: int) -> bool:
    if j - i in exclude.diagonals:
        return False
    relation = exclude.groups or exclude.classes
    if relation is None:
        return True
    return bool(relation.rows[i] == relation.columns[j]) == exclude.only_classes


DYSTRESS, ARTANH = CosineTemperature(0.1, 0.2), InverseTanh()


def unit(n: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, dim, generator=generator), dim=1)


def normal(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def groups(n: int, seed: int) -> Tensor:
    # Numbers that differ beyond 32 bits only: they must not be cut.
    drawn = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))
    return drawn * 2**32 + 7


def logit(s: float, tau: float, map: Any) -> tuple[float, float]:
    """l and dl/ds of one pair."""
    if map is None:
        return s / tau, 1 / tau
    if map.name == "dystress":
        low, high = map.parameters()
        own = low + (high - low) * math.sin(math.pi * s / 2) ** 2
        return s / own, 1 / own
    return math.log1p(s) - math.log1p(-s), 2 / (1 - s * s)


def exact(rows: Tensor, columns: Tensor, taus: Tensor, exclude: Exclusions, map: Any) -> Any:
    """(n, m) logits, −∞ where a pair does not count, slopes and similarities, in float64.

    One pair at a time; `taus` (n,).
    """
    n, m = len(rows), len(columns)
    s = rows.double() @ columns.double().T
    logits, slopes = torch.full((n, m), -torch.inf).double(), torch.zeros(n, m).double()
    values, tau = s.tolist(), taus.double().expand(n).tolist()
    for i in range(n):
        for j in range(m):
            if counts(exclude, i, j):
                logits[i, j], slopes[i, j] = logit(values[i][j], tau[i], map)
    return logits, slopes, s


def pair_function(x: float, function: str) -> tuple[float, float]:
    """f(x) and f'(x)."""
    softplus, sigmoid = math.log1p(math.exp(x)), 1 / (1 + math.exp(-x))
    return {
        "softplus": (softplus, sigmoid),
        "identity": (x, 1.0),
        "nll_over_scale": (softplus / sigmoid, 1.0),
        "one": (1.0, 1.0),
    }[function]


def exact_pairs(
    s: Tensor, scale: float, offset: Tensor, exclude: Exclusions, weight: Tensor, function: str
) -> tuple[Tensor, Tensor]:
    """(n, m) f(offset + scale·s) and weight·f': one pair at a time, float64."""
    values, slopes = torch.zeros_like(s), torch.zeros_like(s)
    for i in range(len(s)):
        for j in range(s.shape[1]):
            if counts(exclude, i, j):
                x = scale * float(s[i, j]) + float(offset.expand(len(s))[i])
                values[i, j], slope = pair_function(x, function)
                slopes[i, j] = float(weight[i]) * slope
    return values, slopes


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest value; NaN must be in the same places."""
    if found.shape != expected.shape or not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    kept = ~expected.isnan()
    largest = float(expected[kept].abs().max()) or 1.0
    return float((found.double() - expected)[kept].abs().max()) / largest


def difference(found: Tensor, expected: Tensor) -> float:
    special = ~expected.isfinite()
    if not torch.equal(found.double().nan_to_num(7.0)[special], expected.nan_to_num(7.0)[special]):
        return math.inf
    gap = (found.double() - expected)[~special].abs()
    return math.inf if gap.isnan().any() else float(gap.max()) if len(gap) else 0.0
