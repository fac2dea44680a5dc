"""Honest figures: mean ± std over seeds, paired differences with an interval, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """How far something lies from its baseline, seed by seed."""

    mean: float
    low: float
    high: float
    """Ends of the 95% t interval of the mean difference; infinite with a single pair."""
    pairs: int

    @property
    def verdict(self) -> str:
        """ "ahead", "behind", or that nothing was shown."""
        if self.low > 0:
            return "ahead"
        if self.high < 0:
            return "behind"
        return f"no difference shown with {self.pairs} seed{'s' * (self.pairs != 1)}"


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], confidence: float = 0.95
) -> Difference:
    """values − baseline, element by element (the same seed on both sides), with a t interval."""
    from scipy import stats

    if len(values) != len(baseline) or not values:
        raise ValueError(f"pairs are needed, got {len(values)} values and {len(baseline)}.")
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    mean, std = mean_std(differences.tolist())
    n = len(differences)
    if n == 1:
        return Difference(mean, -math.inf, math.inf, n)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * std / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)
