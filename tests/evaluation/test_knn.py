from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from macl.core.errors import UserError
from macl.probes.knn import knn_accuracy, knn_predict


def knn_by_loop(
    train: Tensor, labels: Tensor, test: Tensor, k: int, t: float, classes: int
) -> Tensor:
    scores = torch.zeros(len(test), classes, dtype=torch.float64)
    for i, query in enumerate(test):
        cosines = [float(query @ key / (query.norm() * key.norm())) for key in train]
        nearest = sorted(range(len(train)), key=lambda j: -cosines[j])[:k]
        for j in nearest:
            scores[i, labels[j]] += math.exp(cosines[j] / t)
        scores[i] /= scores[i].sum()
    return scores


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.floats(0.05, 1))
def test_equals_the_loop(seed: int, k: int, t: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    train = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    test = 5 * torch.randn(7, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (20,), generator=generator)
    scores = knn_predict(train, labels, test, 4, k=k, temperature=t)
    torch.testing.assert_close(scores, knn_by_loop(train, labels, test, k, t, 4))


def test_a_tiny_temperature_does_not_overflow() -> None:
    train = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    scores = knn_predict(
        train, torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0.0]]), 2, temperature=1e-3
    )
    assert scores.isfinite().all()
    assert scores.argmax() == 0


def test_accuracy_in_percent_with_top5_only_where_it_says_something() -> None:
    eye = torch.eye(8)
    labels = torch.arange(8)
    shifted = labels.clone()
    shifted[:2] = torch.tensor([1, 0])
    assert knn_accuracy(eye, labels, eye, shifted, k=1)["top1"] == 75
    assert set(knn_accuracy(eye, labels, eye, labels)) == {"top1", "top5"}
    few = labels % 5
    assert set(knn_accuracy(eye, few, eye, few)) == {"top1"}


def test_top5_counts_the_best_five() -> None:
    # One neighbor of each of eight classes at growing angles: the ranking is the class order.
    angles = torch.arange(8) * 0.1
    train = torch.stack([angles.cos(), angles.sin()], dim=1)
    test = torch.tensor([[1.0, 0.0]]).expand(8, 2)
    result = knn_accuracy(train, torch.arange(8), test, torch.arange(8))
    assert result == {"top1": 100 / 8, "top5": 100 * 5 / 8}


def test_a_test_class_that_training_lacks_is_simply_wrong() -> None:
    eye = torch.eye(3)
    result = knn_accuracy(eye, torch.tensor([0, 1, 1]), eye, torch.tensor([0, 1, 9]))
    assert result["top1"] == pytest.approx(200 / 3)


def test_mistakes_are_named() -> None:
    x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    with pytest.raises(UserError, match="test data have no labels"):
        knn_accuracy(x, y, x, None)
    with pytest.raises(UserError, match="belong to class 3"):
        knn_accuracy(x, torch.full((4,), 3), x, y)
    with pytest.raises(UserError, match="train features hold NaN"):
        knn_accuracy(x / 0, y, x, y)
    with pytest.raises(UserError, match="negative class -1"):
        knn_accuracy(x, y, x, y - 1)
    with pytest.raises(UserError, match="one row of features per label"):
        knn_accuracy(x, y[:2], x, y)
    with pytest.raises(ValueError, match="k=0"):
        knn_predict(x, y, x, 2, k=0)
