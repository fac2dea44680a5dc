"""The streamed operator as slow, obvious float64 loops: values and closed-form gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from macl.losses.ops import CosineTemperature, Exclusions, InverseTanh, LogitMap, Relation


def agree(relation: Relation, i: int, j: int) -> bool:
    one, two = relation.rows[i], relation.columns[j]
    if one.ndim == 0:
        return int(one) == int(two)
    return any(bool(a) and bool(b) for a, b in zip(one.tolist(), two.tolist(), strict=True))


def excluded(exclude: Exclusions, i: int, j: int) -> bool:
    if j - i in exclude.diagonals:
        return True
    if exclude.classes is not None:
        same = agree(exclude.classes, i, j)
        if exclude.only_classes or same:
            return same != exclude.only_classes
    if exclude.groups is not None and agree(exclude.groups, i, j):
        return True
    if exclude.listed is not None:
        listed = zip(exclude.listed.rows.tolist(), exclude.listed.columns.tolist(), strict=True)
        if (i, j) in set(listed):
            return True
    if exclude.guide is not None:
        s = math.fsum((exclude.guide.rows[i] * exclude.guide.columns[j]).tolist())
        return s > float(exclude.guide.threshold[i])
    return False


def logit_and_slope(s: float, tau: float | None, map: LogitMap | None) -> tuple[float, float]:
    if isinstance(map, CosineTemperature):
        tau = map.tau_min + (map.tau_max - map.tau_min) * math.sin(math.pi * s / 2) ** 2
    if isinstance(map, InverseTanh):
        return math.log((1 + s) / (1 - s)), 2 / (1 - s * s)
    assert tau is not None
    return s / tau, 1 / tau


@dataclass
class Matrix:
    """All logits, slopes and which pairs count."""

    rows: Tensor
    columns: Tensor
    logits: Tensor
    slopes: Tensor
    counts: list[list[bool]]

    def lse(self) -> list[float]:
        found = []
        for logits, counts in zip(self.logits.tolist(), self.counts, strict=True):
            terms = [x for x, counted in zip(logits, counts, strict=True) if counted]
            peak = max(terms, default=-math.inf)
            total = math.fsum(math.exp(x - peak) for x in terms)
            found.append(peak + math.log(total) if terms else -math.inf)
        return found

    def moments(self) -> tuple[list[float], list[float]]:
        """Means of l and of l² under the softmax; 0 where no pair counts."""
        means, squares = [], []
        for logits, counts, lse in zip(self.logits.tolist(), self.counts, self.lse(), strict=True):
            terms = [x for x, counted in zip(logits, counts, strict=True) if counted]
            means.append(math.fsum(math.exp(x - lse) * x for x in terms))
            squares.append(math.fsum(math.exp(x - lse) * x * x for x in terms))
        return means, squares

    def gradients(self, row_weight: list[float], column_weight: list[float]) -> dict[str, Tensor]:
        """Of Σ_i row_weight_i·lse_i + Σ_j column_weight_j·lse_j.

        By rows, columns and each row's τ; `own`: the rows' gradient from their own logsumexps.
        """
        by_row, by_column = self.lse(), self.transposed().lse()
        d_rows, d_columns = torch.zeros_like(self.rows), torch.zeros_like(self.columns)
        own, d_tau = torch.zeros_like(self.rows), torch.zeros(len(self.rows)).double()

        def add(i: int, j: int, weight: float) -> None:
            slope = float(self.slopes[i, j])
            d_rows[i] += weight * slope * self.columns[j]
            d_columns[j] += weight * slope * self.rows[i]
            d_tau[i] -= weight * slope * float(self.logits[i, j])  # dl/dτ = −s/τ² = −l/τ

        for i in range(len(self.rows)):
            for j in range(len(self.columns)):
                if not self.counts[i][j]:
                    continue
                x = float(self.logits[i, j])
                mine = row_weight[i] * math.exp(x - by_row[i])
                theirs = column_weight[j] * math.exp(x - by_column[j])
                own[i] += mine * float(self.slopes[i, j]) * self.columns[j]
                add(i, j, mine + theirs)
        return {"rows": d_rows, "columns": d_columns, "own": own, "tau": d_tau}

    def transposed(self) -> Matrix:
        counts = [list(column) for column in zip(*self.counts, strict=True)]
        return Matrix(self.columns, self.rows, self.logits.T, self.slopes.T, counts)


def matrix(
    rows: Tensor,
    columns: Tensor,
    temperature: list[float] | None,
    exclude: Exclusions,
    map: LogitMap | None,
) -> Matrix:
    rows, columns = rows.double(), columns.double()
    n, m = len(rows), len(columns)
    logits, slopes = torch.zeros(n, m).double(), torch.zeros(n, m).double()
    for i in range(n):
        for j in range(m):
            s = math.fsum((rows[i] * columns[j]).tolist())
            tau = None if temperature is None else temperature[i]
            logits[i, j], slopes[i, j] = logit_and_slope(s, tau, map)
    counts = [[not excluded(exclude, i, j) for j in range(m)] for i in range(n)]
    return Matrix(rows, columns, logits, slopes, counts)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "softplus": (_softplus, _sigmoid),
    "identity": (lambda x: x, lambda x: 1.0),
    "nll_over_scale": (lambda x: _softplus(x) / _sigmoid(x), lambda x: 1.0),
    "one": (lambda x: 1.0, lambda x: 1.0),
}


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: list[float],
    offset: list[float],
    exclude: Exclusions,
    weight: list[float],
    function: str,
) -> tuple[list[float], dict[str, Tensor]]:
    """Values, and the gradients of Σ_i weight_i·value_i."""
    value, derivative = FUNCTIONS[function]
    rows, columns = rows.double(), columns.double()
    sums = [0.0] * len(rows)
    d = {
        "rows": torch.zeros_like(rows),
        "columns": torch.zeros_like(columns),
        "scale": torch.zeros(len(rows)).double(),
        "offset": torch.zeros(len(rows)).double(),
    }
    for i in range(len(rows)):
        for j in range(len(columns)):
            if excluded(exclude, i, j):
                continue
            s = math.fsum((rows[i] * columns[j]).tolist())
            x = offset[i] + scale[i] * s
            sums[i] += value(x)
            slope = weight[i] * derivative(x)
            d["rows"][i] += slope * scale[i] * columns[j]
            d["columns"][j] += slope * scale[i] * rows[i]
            d["scale"][i] += slope * s
            d["offset"][i] += slope
    return sums, d
