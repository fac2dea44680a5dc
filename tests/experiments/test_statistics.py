"""Intervals, power, corrections and pooling against scipy, by hand and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from macl.experiments.statistics import (
    MARGIN,
    detectable_difference,
    holm,
    mean_std,
    paired_difference,
    pooled_difference,
)


def test_the_interval_is_scipys():
    ours, theirs = [71.0, 73.5, 72.2, 74.0], [70.1, 71.0, 71.9, 71.2]
    found = paired_difference(ours, theirs)
    test = stats.ttest_rel(ours, theirs)
    expected = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(1.625)
    assert found.p == pytest.approx(test.pvalue)


def test_equal_differences_are_no_verdict():
    """Two seeds that lose one item each say nothing: the spread is at least that of one item."""
    item = 100 / 360
    base = [95.0, 94.0 + 1 / 3]
    lost = paired_difference([value - item for value in base], base, resolution=item)
    assert lost.verdict == "no difference shown with 2 seeds"
    assert lost.bounded
    assert lost.std == item
    assert lost.p == pytest.approx(2 * stats.t.sf(math.sqrt(2), 1))
    assert lost.detectable > item
    unknown = paired_difference([value - item for value in base], base)
    assert (unknown.low, unknown.high) == (-math.inf, math.inf)
    assert math.isnan(unknown.p)
    assert math.isnan(unknown.detectable)
    assert unknown.verdict == "no difference shown with 2 seeds"
    many = paired_difference([value - 40 * item for value in base * 3], base * 3, resolution=item)
    assert many.verdict == "behind"
    wide = paired_difference([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], resolution=0.1)
    assert wide == paired_difference([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])


def test_equivalence_is_two_one_sided_tests():
    """Shown where the 90% interval lies within ±MARGIN."""
    generator = np.random.default_rng(3)
    shown = 0
    for shift in np.linspace(0, 0.8, 30):
        values = generator.normal(shift, 0.3, 8)
        found = paired_difference(values.tolist(), [0.0] * 8)
        ends = stats.ttest_1samp(values, 0).confidence_interval(0.9)
        inside = ends.low > -MARGIN and ends.high < MARGIN
        assert (found.equal < 0.05) == inside
        upper = stats.ttest_1samp(values, MARGIN, alternative="less").pvalue
        lower = stats.ttest_1samp(values, -MARGIN, alternative="greater").pvalue
        assert found.equal == pytest.approx(max(upper, lower))
        shown += inside
    assert 0 < shown < 30
    close = paired_difference([0.1, -0.1, 0.05, -0.05, 0.02], [0.0] * 5)
    assert close.verdict == "equal within ±0.5"
    assert paired_difference([0.1, -0.1], [0.0] * 2).verdict == "no difference shown with 2 seeds"


def test_verdicts():
    assert paired_difference([5.0, 5.1, 5.2], [1.0, 1.1, 1.1]).verdict == "ahead"
    assert paired_difference([1.0, 1.1, 1.1], [5.0, 5.1, 5.2]).verdict == "behind"
    unclear = paired_difference([1.0, 5.0, 3.0], [2.0, 2.0, 4.0])
    assert unclear.verdict == "no difference shown with 3 seeds"
    assert paired_difference([9.0], [1.0]).verdict == "no difference shown with 1 seed"


def test_the_standard_deviation_is_the_samples():
    assert mean_std([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))
    assert mean_std([4.0]) == (4.0, 0.0)


def test_the_detectable_difference_of_textbooks():
    """Cohen's d of a paired t test with 80% power at 5%: 0.9962 with 10 pairs, 0.2829 with 100."""
    assert detectable_difference(1.0, 10) == pytest.approx(0.9962, abs=2e-4)
    assert detectable_difference(2.0, 100) == pytest.approx(2 * 0.2829, abs=4e-4)
    assert math.isnan(detectable_difference(1.0, 1))
    assert detectable_difference(0.0, 5) == 0
    strict = detectable_difference(1.0, 3, 0.05 / 20)
    assert strict > detectable_difference(1.0, 3) > detectable_difference(1.0, 4)


def test_the_detectable_difference_is_detected_in_four_of_five():
    generator = np.random.default_rng(0)
    for pairs, level in ((3, 0.05), (10, 0.05), (5, 0.01)):
        shift = detectable_difference(1.5, pairs, level)
        drawn = generator.normal(shift, 1.5, (20_000, pairs))
        share = (stats.ttest_1samp(drawn, 0, axis=1).pvalue < level).mean()
        assert share == pytest.approx(0.8, abs=0.012)


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.06."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_pooling_by_hand():
    """Means 1, 2, 6 of three settings: 3 ± t(2)·√(7/3)."""
    found = pooled_difference([[0.5, 1.5], [1.0, 3.0], [6.0, 6.0]])
    half = stats.t.ppf(0.975, 2) * math.sqrt(7 / 3)
    assert found.mean == pytest.approx(3)
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))
    assert found.p == pytest.approx(stats.ttest_1samp([1, 2, 6], 0).pvalue)
    # Variances 0.5, 2, 0 of single differences; half of that of the means.
    assert found.within == pytest.approx(math.sqrt(2.5 / 3))
    assert found.between == pytest.approx(math.sqrt(7 - 2.5 / 6))
    assert (found.settings, found.pairs) == (3, 6)
    assert found.verdict == "no difference shown over 3 settings"


def test_one_setting_says_nothing_of_others():
    alone = pooled_difference([[1.0, 1.1, 0.9]])
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    assert alone.verdict == "no difference shown over 1 settings"


@pytest.mark.parametrize("between", [0.0, 0.5, 3.0])
def test_the_pooled_interval_holds_the_truth_in_95_of_100(between):
    """Also where settings are unequally noisy and have unequal numbers of seeds."""
    generator = np.random.default_rng(1)
    spreads, sizes, truth = (0.5, 1.0, 1.0, 2.0, 0.7), (3, 3, 5, 10, 3), 0.8
    held = 0
    for _ in range(1500):
        found = pooled_difference(
            [
                generator.normal(truth + generator.normal(0, between), spread, size).tolist()
                for spread, size in zip(spreads, sizes, strict=True)
            ]
        )
        held += found.low <= truth <= found.high
    assert held / 1500 == pytest.approx(0.95, abs=0.02)
