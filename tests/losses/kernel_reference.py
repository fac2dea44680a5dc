"""The streamed operator as slow, obvious float64 loops: values and closed-form gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from macl.losses.kernels import CosineTemperature, Exclusions, InverseTanh, LogitMap


def excluded(exclude: Exclusions, i: int, j: int) -> bool:
    if j - i in exclude.diagonals:
        return True
    if exclude.row_groups is None or exclude.column_groups is None:
        return False
    same = int(exclude.row_groups[i]) == int(exclude.column_groups[j])
    return not same if exclude.only_groups else same


def logit_and_slope(s: float, tau: float | None, map: LogitMap | None) -> tuple[float, float]:
    if isinstance(map, CosineTemperature):
        tau = map.lowest + (map.highest - map.lowest) * math.sin(math.pi * s / 2) ** 2
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

    def gradients(self, row_weight: list[float], column_weight: list[float]) -> dict[str, Tensor]:
        """Of Σ_i row_weight_i·lse_i + Σ_j column_weight_j·lse_j by rows, columns and each row's τ.

        `own`: the rows' gradient from their own logsumexps alone.
        """
        by_row, by_column = self.lse(), self.transposed().lse()
        d_rows, d_columns = torch.zeros_like(self.rows), torch.zeros_like(self.columns)
        own = torch.zeros_like(self.rows)
        for i in range(len(self.rows)):
            for j in range(len(self.columns)):
                if not self.counts[i][j]:
                    continue
                x, slope = float(self.logits[i, j]), float(self.slopes[i, j])
                mine = row_weight[i] * math.exp(x - by_row[i]) * slope
                theirs = column_weight[j] * math.exp(x - by_column[j]) * slope
                own[i] += mine * self.columns[j]
                d_rows[i] += (mine + theirs) * self.columns[j]
                d_columns[j] += (mine + theirs) * self.rows[i]
        return {"rows": d_rows, "columns": d_columns, "own": own}

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
    scale: float,
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
        "scale": torch.zeros(()).double(),
        "offset": torch.zeros(len(rows)).double(),
    }
    for i in range(len(rows)):
        for j in range(len(columns)):
            if excluded(exclude, i, j):
                continue
            s = math.fsum((rows[i] * columns[j]).tolist())
            x = offset[i] + scale * s
            sums[i] += value(x)
            slope = weight[i] * derivative(x)
            d["rows"][i] += slope * scale * columns[j]
            d["columns"][j] += slope * scale * rows[i]
            d["scale"] += slope * s
            d["offset"][i] += slope
    return sums, d
