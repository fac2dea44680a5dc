from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from macl.core.errors import UserError
from macl.probes.classical import C_GRID, HoldOut, cross_validation, logistic_accuracy


def ring(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A disc inside a ring: easy for an RBF kernel, hopeless for a line."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    angle = 2 * torch.pi * torch.rand(n, generator=generator)
    radius = 0.4 + 0.6 * labels + 0.25 * torch.rand(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels


def test_c_grid_is_graphcl_s() -> None:
    assert list(C_GRID) == pytest.approx([1e-3, 1e-2, 1e-1, 1, 10, 100, 1000])


def test_svm_equals_the_protocol_written_out() -> None:
    features, labels = ring()
    features += 0.35 * torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    grid, seed = (0.01, 1.0, 100.0), 3
    result = cross_validation("svm", features, labels, seed=seed, folds=4, inner_folds=3, grid=grid)

    x, y = features.numpy(), labels.numpy()
    accuracies, chosen = [], []
    for train, test in StratifiedKFold(4, shuffle=True, random_state=seed).split(x, y):
        inner = StratifiedKFold(3, shuffle=True, random_state=seed)
        means = []
        for c in grid:
            scores = []
            for fit, check in inner.split(x[train], y[train]):
                model = SVC(C=c).fit(x[train][fit], y[train][fit])
                scores.append(model.score(x[train][check], y[train][check]))
            means.append(np.mean(scores))
        best = grid[int(np.argmax(means))]
        chosen.append(best)
        accuracies.append(100 * SVC(C=best).fit(x[train], y[train]).score(x[test], y[test]))
    assert [fold.accuracy for fold in result] == pytest.approx(accuracies)
    assert [fold.chosen_c for fold in result] == pytest.approx(chosen)
    assert np.std(accuracies) > 0


@pytest.mark.parametrize("seed", range(4))
def test_svm_is_scikit_learn_s_search_where_values_of_c_tie_too(seed: int) -> None:
    features, labels = ring(60, seed)
    features += 0.3 * torch.randn(features.shape, generator=torch.Generator().manual_seed(seed))
    result = cross_validation("svm", features, labels, folds=3)
    x, y = features.double().numpy(), labels.numpy()
    for fold, (train, test) in zip(
        result, StratifiedKFold(3, shuffle=True, random_state=0).split(x, y), strict=True
    ):
        inner = StratifiedKFold(5, shuffle=True, random_state=0)
        searched = GridSearchCV(SVC(), {"C": list(C_GRID)}, cv=inner).fit(x[train], y[train])
        assert fold.chosen_c == searched.best_params_["C"]
        assert fold.accuracy == pytest.approx(100 * searched.score(x[test], y[test]))


def test_svm_bends_where_logistic_regression_cannot() -> None:
    features, labels = ring()
    bent = cross_validation("svm", features, labels, folds=4, grid=(1.0, 100.0))
    straight = cross_validation("logistic", features, labels, folds=4, grid=(1.0,))
    assert np.mean([fold.accuracy for fold in bent]) > 95
    assert np.mean([fold.accuracy for fold in straight]) < 70


def test_no_peeking_random_labels_score_at_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(100, 20, generator=generator)
    labels = torch.arange(100) % 2
    result = cross_validation("svm", features, labels, grid=(0.1, 10.0))
    assert len(result) == 10
    assert 30 < np.mean([fold.accuracy for fold in result]) < 70


def test_the_seed_decides_the_folds() -> None:
    features, labels = ring()
    features += 0.4 * torch.randn(features.shape, generator=torch.Generator().manual_seed(1))

    def run(seed: int) -> list[HoldOut]:
        return cross_validation("svm", features, labels, seed=seed, folds=5, grid=(1.0,))

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_logistic_regression_standardises_on_train_only() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    signal = torch.eye(3)[labels] + 0.2 * torch.randn(120, 3, generator=generator)
    # The signal hides in columns a million times smaller than the noise beside them.
    loud = 1e3 * torch.randn(120, 3, generator=generator)
    features = torch.cat([1e-3 * signal, loud], dim=1)
    split = (features[:90], labels[:90], features[90:], labels[90:])
    scaled = logistic_accuracy(*split, grid=(0.1, 1.0, 10.0))
    x, y, test_x, test_y = (part.numpy() for part in split)
    classifier = LogisticRegression(C=scaled.chosen_c, max_iter=1000)
    assert scaled.accuracy > 90
    assert classifier.fit(x, y).score(test_x, test_y) < 0.6
    assert scaled.chosen_c in (0.1, 1.0, 10.0)
    scaler = StandardScaler().fit(x)
    by_hand = classifier.fit(scaler.transform(x), y).score(scaler.transform(test_x), test_y)
    assert scaled.accuracy == pytest.approx(100 * by_hand)


def test_mistakes_are_named() -> None:
    features, labels = ring(40)
    with pytest.raises(UserError, match="have no labels"):
        cross_validation("svm", features, None)
    with pytest.raises(UserError, match="at least two classes"):
        cross_validation("svm", features, torch.zeros_like(labels))
    with pytest.raises(UserError, match="NaN"):
        cross_validation("svm", features * torch.nan, labels)
    labels[:3] = 7
    with pytest.raises(UserError, match="Class 7 has 3 items, too few for 10"):
        cross_validation("svm", features, labels)
    with pytest.raises(UserError, match="test data have no labels"):
        logistic_accuracy(features, labels % 2, features, None)
