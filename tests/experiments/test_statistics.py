"""Intervals and verdicts against scipy and by hand."""

import math

import pytest
from scipy import stats

from macl.experiments.statistics import mean_std, paired_difference


def test_the_interval_is_scipys():
    ours, theirs = [71.0, 73.5, 72.2, 74.0], [70.1, 71.0, 71.9, 71.2]
    found = paired_difference(ours, theirs)
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(1.625)


def test_verdicts():
    assert paired_difference([5.0, 5.1, 5.2], [1.0, 1.1, 1.1]).verdict == "ahead"
    assert paired_difference([1.0, 1.1, 1.1], [5.0, 5.1, 5.2]).verdict == "behind"
    unclear = paired_difference([1.0, 5.0, 3.0], [2.0, 2.0, 4.0])
    assert unclear.verdict == "no difference shown with 3 seeds"
    assert paired_difference([9.0], [1.0]).verdict == "no difference shown with 1 seed"


def test_the_standard_deviation_is_the_samples():
    assert mean_std([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))
    assert mean_std([4.0]) == (4.0, 0.0)


def test_pairs_are_needed():
    with pytest.raises(ValueError, match="pairs"):
        paired_difference([1.0, 2.0], [1.0])
