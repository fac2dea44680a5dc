"""Statistics over seeds: paired differences, what they could have shown, and pooled settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.05
"""Two-sided level of every test; intervals have confidence 1 − LEVEL."""

POWER = 0.8
"""Probability with which the smallest detectable difference is detected."""

MARGIN = 0.5
"""Points within which two settings count as equal, where that is shown (TOST)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean difference to a baseline with its tests: over seeds, or pooled over settings."""

    mean: float
    low: float = -math.inf
    high: float = math.inf
    """Ends of the 95% t interval of the mean; infinite where there is no spread."""
    p: float = math.nan
    """Two-sided p value of the t test; NaN where there is no spread."""
    equal: float = math.nan
    """p value of the test for equivalence within ±MARGIN (the larger one of two one-sided ones)."""
    pairs: int
    """Runs with the same seed, over all settings."""
    adjusted: float | None = None
    """The p value after Holm's correction; None: it is one of no family of comparisons."""
    equal_adjusted: float | None = None
    comparisons: int = 1
    """Size of the family."""
    std: float = math.nan
    """Standard deviation over seeds, at least what one test item changes; NaN: none, or a pool."""
    bounded: bool = False
    """Whether the differences vary by less than one test item, which `std` then is."""
    settings: int = 0
    """How many are pooled; 0: it is the difference of one."""
    between: float = math.nan
    """Of a pool: standard deviation of the true difference between settings (0: all is noise)."""
    within: float = math.nan
    """Of a pool: standard deviation of a difference over seeds, within a setting."""

    @property
    def verdict(self) -> str:
        """ "ahead", "behind" or "equal within ±0.5" where p, corrected if it was, is below 5%."""
        if (self.p if self.adjusted is None else self.adjusted) < LEVEL:
            return "ahead" if self.mean > 0 else "behind"
        if (self.equal if self.equal_adjusted is None else self.equal_adjusted) < LEVEL:
            return f"equal within ±{MARGIN:g}"
        seeds = f"with {self.pairs} seed{'s' * (self.pairs != 1)}"
        sample = f"over {self.settings} settings" if self.settings else seeds
        return f"no difference shown {sample}"

    @property
    def detectable(self) -> float:
        """The smallest true difference shown with 80% power at 5% / comparisons; NaN for one pair.

        That is Holm's strictest level, which the smallest p value of the family has to reach.
        """
        return detectable_difference(self.std, self.pairs, LEVEL / self.comparisons)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], resolution: float = 0.0
) -> Difference:
    """values − baseline, element by element (the same seed on both sides), with a t interval.

    With d_s the n differences, d̄ their mean and s their standard deviation, the interval is
    d̄ ± t(0.975; n−1)·s/√n, and p that of t = d̄√n/s. Differences that are all the same say that the
    test set is small, not that the next seed would give the same: s is at least `resolution`, and
    without one there is neither an interval nor a verdict. One test item of n changes 100/n points.
    """
    differences = np.subtract(values, baseline)
    mean, std = mean_std(differences.tolist())
    if std < 1e-9 * float(np.abs(values).max()):  # what is left of equal differences by rounding
        std = 0.0
    spread = max(std, resolution)
    if len(differences) == 1 or spread == 0:
        return Difference(mean=mean, pairs=len(differences))
    tests = _t_tests(mean, spread, len(differences))
    return Difference(pairs=len(differences), std=spread, bounded=std < resolution, **tests)


def pooled_difference(settings: Sequence[Sequence[float]]) -> Difference:
    """The mean difference over K settings, with an interval for settings of the same kind.

    Two levels: the difference of seed s in setting k is d_ks = μ + b_k + e_ks, with b_k ~ N(0, β²)
    between settings and e_ks within. With d̄_k the mean over the n_k seeds of a setting,

        μ̂ = mean_k d̄_k,   SE² = var_k(d̄_k) / K,   interval μ̂ ± t(0.975; K−1)·SE.

    var_k(d̄_k), the sample variance of the K means, estimates β² + mean_k(σ²_k/n_k): it holds both
    levels. Settings weigh the same, so no setting's own variance, estimated from few seeds, decides
    how much it counts. β̂² = max(0, var_k(d̄_k) − mean_k(s²_k/n_k)), over settings with two seeds or
    more; σ̂² is the pooled variance within settings. `settings` has the differences of each by seed.
    """
    arrays = [np.asarray(each, dtype=float) for each in settings]
    means = np.array([each.mean() for each in arrays])
    repeated = [each for each in arrays if len(each) > 1]
    noise = [each.var(ddof=1) / len(each) for each in repeated]
    degrees = sum(len(each) - 1 for each in repeated)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in repeated)
    mean, spread = mean_std(means.tolist())
    between = math.sqrt(max(0.0, spread**2 - float(np.mean(noise or 0.0))))
    within = math.sqrt(squares / degrees) if degrees else math.nan
    tests = _t_tests(mean, spread, len(means)) if spread > 0 else {"mean": mean}
    pairs = sum(map(len, arrays))
    return Difference(settings=len(means), pairs=pairs, between=between, within=within, **tests)


def detectable_difference(
    std: float, pairs: int, level: float = LEVEL, power: float = POWER
) -> float:
    """The smallest true difference that a paired t test finds with probability `power`.

    The test statistic of a true difference δ is noncentral t with n − 1 degrees of freedom and
    noncentrality δ√n/σ. So δ = λσ/√n, with λ the root of P(T(λ) > t(1 − level/2; n−1)) = power.
    `std` is σ, of the differences; NaN is returned for one pair.
    """
    if pairs < 2 or math.isnan(std):
        return math.nan
    from scipy import special, stats

    limit = stats.t.ppf(1 - level / 2, pairs - 1)
    return float(special.nctdtrinc(pairs - 1, 1 - power, limit)) * std / math.sqrt(pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: with p_(1) ≤ … ≤ p_(m), max_{j ≤ i} min(1, (m − j + 1)·p_(j)).

    Rejecting where an adjusted value is below 5% keeps the probability of any false rejection among
    the m tests below 5%, whatever their dependence.
    """
    order = np.argsort(p_values)
    scaled = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1)
    return adjusted.tolist()


def _t_tests(mean: float, spread: float, count: int) -> dict[str, Any]:
    """The fields of a `Difference` for a mean of `count` values with this standard deviation.

    Equivalence is shown by two one-sided tests (Schuirmann 1987), that the mean is above −MARGIN
    and that it is below MARGIN; both are where the 90% interval lies within ±MARGIN.
    """
    from scipy import stats

    error, degrees = spread / math.sqrt(count), count - 1
    half = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, degrees))
    equal = float(stats.t.sf((MARGIN - abs(mean)) / error, degrees))
    return {"mean": mean, "low": mean - half, "high": mean + half, "p": p, "equal": equal}
