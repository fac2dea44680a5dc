"""Whether an adapted encoder is better: per-item scores before and after, on the same items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from macl.core.similarity import nearest_rows

LEVEL = 0.01
"""Two-sided level: stricter than usual, as people look at many encoders."""
POWER = 0.8
NEIGHBORS = 20
TEMPERATURE = 0.1
LINEAR_C = 100.0
"""Inverse penalty of the linear probe, for vectors of length 1."""

Scores = NDArray[np.float64]
Labels = Sequence[frozenset[str]]
"""The classes of each item; empty: not known."""


@dataclass(frozen=True)
class Verdict:
    """The mean difference after − before in points, with its interval, and what it shows."""

    result: str
    """better, worse, no difference shown, or not judged."""
    reason: str
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    """Ends of the 99% interval."""
    detectable: float = math.nan
    """The smallest true difference that is shown with 80% power."""
    items: int = 0
    seeds: int = 0

    @property
    def figures(self) -> str:
        """The difference with its interval, as a line of text."""
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        return (
            f"{self.difference:+.2f} points, 99% interval {self.low:+.2f} to {self.high:+.2f}, "
            f"{self.items:,} items, {seeds}"
        )


def knn_scores(bank: Tensor, known: Labels, test: Tensor, truth: Labels) -> tuple[Scores, float]:
    """The share of each test item's classes that its neighbors name, and what chance gives.

    An item with m classes is given the m classes with most votes among its 20 nearest, so with one
    class each this is accuracy. Chance pairs the same answers with other items.
    """
    from sklearn.preprocessing import MultiLabelBinarizer

    coder = MultiLabelBinarizer()
    hot = torch.from_numpy(coder.fit_transform(known)).float()
    cosines, places = nearest_rows(F.normalize(test, dim=1), F.normalize(bank, dim=1), NEIGHBORS)
    votes = (torch.softmax(cosines / TEMPERATURE, dim=1).unsqueeze(2) * hot[places]).sum(1)
    ranked = votes.argsort(dim=1, descending=True, stable=True)
    answers = coder.classes_[ranked.numpy()].tolist()

    def score(i: int, answer: list[str]) -> float:
        return len(truth[i].intersection(answer[: len(truth[i])])) / len(truth[i])

    n = len(truth)
    scores = np.array([score(i, answers[i]) for i in range(n)])
    chance = [score(i, answers[(i + shift) % n]) for shift in range(1, 8) for i in range(n)]
    return scores, float(np.mean(chance))


def linear_accuracy(bank: Tensor, known: Labels, test: Tensor, truth: Labels) -> float | None:
    """Percent that logistic regression on unit vectors gets right; None for several labels."""
    from sklearn.linear_model import LogisticRegression

    if any(len(each) != 1 for each in (*known, *truth)) or len(set(known)) < 2:
        return None
    probe = LogisticRegression(C=LINEAR_C, max_iter=300)
    probe.fit(F.normalize(bank, dim=1).numpy(), [label for (label,) in known])
    return 100 * float(probe.score(F.normalize(test, dim=1).numpy(), [label for (label,) in truth]))


def judge(before: Scores, after: Sequence[Scores], chance: float = 0.0) -> Verdict:
    """The verdict on N items and S seeds; scores are between 0 and 1.

    With d_si the differences, the variance of their mean is that over items, s²_i/N of the means
    over seeds, plus that over seeds, s²_s/S of the means over items; degrees of freedom are
    Satterthwaite's. The spread is bounded below by one item of the test set, so equal differences
    show nothing that the items cannot. Better also needs scores above chance: where the labels
    cannot be read from either encoder, a difference is noise.
    """
    from scipy import stats

    scores = np.stack(list(after))
    seeds, items = scores.shape
    each = scores - before
    mean = float(each.mean())
    by_item = float(each.mean(0).var(ddof=1)) / items
    by_seed = float(each.mean(1).var(ddof=1)) / seeds if seeds > 1 else 0.0
    variance = max(by_item + by_seed, (1 / items) ** 2)
    degrees = variance**2 / (
        by_item**2 / (items - 1) + (by_seed**2 / (seeds - 1) if seeds > 1 else 0.0) + 1e-30
    )
    degrees = min(max(degrees, 1.0), items - 1.0)
    error, limit = math.sqrt(variance), float(stats.t.ppf(1 - LEVEL / 2, degrees))
    level = float(scores.mean())
    spread = math.sqrt(max(float(scores.mean(0).var(ddof=1)), 1e-12) / items)
    above = (level - chance) / spread > float(stats.norm.ppf(1 - LEVEL / 2))
    low, high = mean - limit * error, mean + limit * error
    result, reason = "no difference shown", "the interval of the difference contains zero"
    if low > 0 and above:
        result, reason = "better", "the interval of the difference is above zero"
    elif low > 0:
        reason = "neither encoder predicts these labels better than chance"
    elif high < 0:
        result, reason = "worse", "the interval of the difference is below zero"
    detectable = (limit + float(stats.norm.ppf(POWER))) * error
    mean, low, high, detectable = (100 * value for value in (mean, low, high, detectable))
    return Verdict(result, reason, mean, low, high, detectable, items, seeds)


def labels_needed(changed: float) -> dict[str, int]:
    """Labeled held-out items that would show a difference of 1, 2 and 5 points.

    `changed` is the share of items with another nearest neighbor than before: at most so many
    answers differ, and their differences have at most this variance.
    """
    from scipy import stats

    factor = (float(stats.norm.ppf(1 - LEVEL / 2)) + float(stats.norm.ppf(POWER))) ** 2
    variance = max(changed, 0.01)
    return {str(p): math.ceil(factor * variance / (p / 100) ** 2) for p in (1, 2, 5)}
