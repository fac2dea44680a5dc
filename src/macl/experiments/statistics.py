"""Mean and standard deviation over seeds; paired differences with a t interval and a verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The mean difference to a baseline over pairs of runs with the same seed."""

    mean: float
    low: float
    high: float
    """Ends of the 95% t interval of the mean difference; infinite with a single pair."""
    pairs: int

    @property
    def verdict(self) -> str:
        """ "ahead" or "behind" where the interval excludes 0, else that no difference was shown."""
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
    mean = float(np.mean(np.subtract(values, baseline)))
    if len(values) == 1:
        return Difference(mean, -math.inf, math.inf, 1)
    with warnings.catch_warnings():
        # Equal differences have an interval of width 0; scipy warns that its t is infinite.
        warnings.simplefilter("ignore", RuntimeWarning)
        interval = stats.ttest_rel(values, baseline).confidence_interval(confidence)
    return Difference(mean, float(interval.low), float(interval.high), len(values))
