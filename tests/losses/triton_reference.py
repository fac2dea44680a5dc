"""Inputs and float64 results for the cases of the Triton kernels: one pair at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Exclusions:
    diagonals: tuple[int, ...] = ()
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None
    only_groups: bool = False

    def transposed(self) -> Exclusions:
        negated = tuple(-d for d in self.diagonals)
        return Exclusions(negated, self.column_groups, self.row_groups, self.only_groups)

    def count(self, i: int, j: int) -> bool:
        if j - i in self.diagonals:
            return False
        if self.row_groups is None or self.column_groups is None:
            return True
        return bool(self.row_groups[i] == self.column_groups[j]) == self.only_groups


def unit(n: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, dim, generator=generator), dim=1)


def normal(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def groups(n: int, seed: int) -> Tensor:
    # Numbers that differ beyond 32 bits only: they must not be cut.
    found = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))
    return found * 2**32 + 7


def logit(s: float, tau: float, map: Any) -> tuple[float, float]:
    """l and dl/ds of one pair."""
    if map is None:
        return s / tau, 1 / tau
    if map.name == "dystress":
        own = map.lowest + (map.highest - map.lowest) * math.sin(math.pi * s / 2) ** 2
        return s / own, 1 / own
    return math.log1p(s) - math.log1p(-s), 2 / (1 - s * s)


def exact(rows: Tensor, columns: Tensor, taus: Any, exclude: Exclusions, map: Any) -> Any:
    """(n, m) logits, −∞ where a pair does not count, and slopes: one pair at a time, float64."""
    n, m = len(rows), len(columns)
    s = (rows.double() @ columns.double().T).tolist()
    logits, slopes = torch.full((n, m), -torch.inf).double(), torch.zeros(n, m).double()
    for i in range(n):
        for j in range(m):
            if exclude.count(i, j):
                logits[i, j], slopes[i, j] = logit(s[i][j], taus(i, j), map)
    return logits, slopes


def exact_pairs(
    rows: Tensor,
    columns: Tensor,
    scale: float,
    offset: Tensor,
    exclude: Exclusions,
    weight: Tensor,
    function: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(n, m) f(offset + scale·s), weight·f' and s: one pair at a time, float64."""
    n, m = len(rows), len(columns)
    s = rows.double() @ columns.double().T
    values, slopes = torch.zeros(n, m).double(), torch.zeros(n, m).double()
    for i in range(n):
        for j in range(m):
            if exclude.count(i, j):
                x = scale * float(s[i, j]) + float(offset.expand(n)[i])
                soft = function == "softplus"
                values[i, j] = math.log1p(math.exp(x)) if soft else x
                slopes[i, j] = float(weight[i]) / (1 + math.exp(-x)) if soft else weight[i]
    return values, slopes, s


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest value; NaN and −∞ must be in the same places."""
    if not torch.equal(found.isnan(), expected.isnan()):
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


class Dispatched(TorchDispatchMode):
    """Names of the dispatched operators, but for those that only allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "empty" not in str(func):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))
