"""scikit-learn's classifiers on frozen features; hyper-parameters are chosen on training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from macl.core.errors import UserError
from macl.core.progress import track
from macl.probes.common import require_classes, require_features

C_GRID = tuple(10.0**power for power in range(-3, 4))
"""GraphCL's values of the inverse regularisation C: 1e-3 … 1e3."""


@dataclass(frozen=True)
class CrossValidation:
    """Accuracies in percent on the outer test folds, and the C that each inner search chose."""

    folds: tuple[float, ...]
    chosen_c: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean test accuracy over the folds."""
        return float(np.mean(self.folds))

    @property
    def std(self) -> float:
        """Standard deviation (population) over the folds."""
        return float(np.std(self.folds))


@dataclass(frozen=True)
class HoldOut:
    """Accuracy in percent on a fixed test set, and the C that cross-validation on train chose."""

    accuracy: float
    chosen_c: float


def logistic_classifier(
    *,
    standardize: bool = True,
    grid: Sequence[float] = C_GRID,
    folds: int = 5,
    seed: int = 0,
    max_iter: int = 1000,
) -> GridSearchCV:
    """Logistic regression whose C is searched by stratified cross-validation inside `fit`."""
    classifier = LogisticRegression(max_iter=max_iter)
    return _searched(classifier, standardize, grid, folds, seed)


def cross_validate(
    classifier: GridSearchCV,
    features: Tensor,
    labels: Tensor | None,
    *,
    folds: int = 10,
    seed: int = 0,
) -> CrossValidation:
    """Nested cross-validation: stratified outer folds test, the classifier's inner folds choose C.

    Args:
        classifier: from `logistic_classifier`; cloned for every fold.
        features: (N, D).
        labels: (N,) classes, each with at least `folds` members.
        folds: number of outer folds.
        seed: shuffles the outer folds.
    """
    x, y = _arrays(features, labels, "all", smallest_class=folds)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y)
    accuracies, chosen = [], []
    for train, test in track(splits, "Cross-validation", total=folds):
        fitted = clone(classifier).fit(x[train], y[train])
        accuracies.append(100 * float(fitted.score(x[test], y[test])))
        chosen.append(_chosen_c(fitted))
    return CrossValidation(tuple(accuracies), tuple(chosen))


def svm_cross_validation(
    features: Tensor,
    labels: Tensor | None,
    *,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 5,
    grid: Sequence[float] = C_GRID,
) -> CrossValidation:
    """GraphCL's protocol: RBF SVC on raw features, stratified 10-fold, C by inner 5-fold search.

    The same as scikit-learn's GridSearchCV over SVC(kernel="rbf", gamma="scale"), with distances
    computed once and kernels shared by all values of C, which takes a fraction of the time.
    """
    x, y = _arrays(features, labels, "all", smallest_class=folds)
    x = x.astype(np.float64)
    problem = _Kernel(x, cdist(x, x, "sqeuclidean"), y)
    inner = StratifiedKFold(inner_folds, shuffle=True, random_state=seed)
    outer = StratifiedKFold(folds, shuffle=True, random_state=seed)
    accuracies, chosen = [], []
    for train, test in track(outer.split(x, y), "Cross-validation", total=folds):
        found = [
            problem.accuracies(train[own], train[held_out], grid)
            for own, held_out in inner.split(x[train], y[train])
        ]
        best = float(grid[int(np.mean(found, axis=0).argmax())])  # of equals the first
        accuracies.append(problem.accuracies(train, test, [best])[0])
        chosen.append(best)
    return CrossValidation(tuple(accuracies), tuple(chosen))


@dataclass(frozen=True)
class _Kernel:
    """Support vector machines on parts of one data set: `x` (N, D), `distances` (N, N) squared."""

    x: np.ndarray[Any, Any]
    distances: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]

    def accuracies(
        self, train: np.ndarray[Any, Any], test: np.ndarray[Any, Any], grid: Sequence[float]
    ) -> list[float]:
        """Accuracy in percent on `test` for each C; γ = 1/(D·Var x) of the training part."""
        variance = float(self.x[train].var())
        gamma = 1 / (self.x.shape[1] * variance) if variance else 1.0
        own = np.exp(-gamma * self.distances[np.ix_(train, train)])
        other = np.exp(-gamma * self.distances[np.ix_(test, train)])
        fitted = (SVC(C=c, kernel="precomputed").fit(own, self.y[train]) for c in grid)
        return [100 * float(machine.score(other, self.y[test])) for machine in fitted]


def logistic_cross_validation(
    features: Tensor,
    labels: Tensor | None,
    *,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 5,
    standardize: bool = True,
    grid: Sequence[float] = C_GRID,
) -> CrossValidation:
    """Logistic regression under the same nested folds, for data without a fixed test set."""
    classifier = logistic_classifier(
        standardize=standardize, grid=grid, folds=inner_folds, seed=seed
    )
    return cross_validate(classifier, features, labels, folds=folds, seed=seed)


def logistic_accuracy(
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    *,
    seed: int = 0,
    folds: int = 5,
    standardize: bool = True,
    grid: Sequence[float] = C_GRID,
) -> HoldOut:
    """Logistic regression on a fixed split: C by cross-validation on train, then tested once.

    Args:
        train: (N, D) features, with (N,) `train_labels`.
        test: (M, D) features, with (M,) `test_labels`.
        seed: shuffles the folds of the search.
        folds: number of folds of the search; every class needs that many members.
        standardize: zero mean and unit variance, measured on the training part of every fold.
        grid: values of C to try.
    """
    classifier = logistic_classifier(standardize=standardize, grid=grid, folds=folds, seed=seed)
    x, y = _arrays(train, train_labels, "train", smallest_class=folds)
    test_labels = require_features(test, test_labels, "test")
    fitted = classifier.fit(x, y)
    accuracy = 100 * float(fitted.score(_numpy(test), _numpy(test_labels)))
    return HoldOut(accuracy, _chosen_c(fitted))


def _searched(
    classifier: BaseEstimator, standardize: bool, grid: Sequence[float], folds: int, seed: int
) -> GridSearchCV:
    # The scaler sits inside the pipeline so that it never sees a held-out fold.
    steps = [StandardScaler(), classifier] if standardize else [classifier]
    pipeline = make_pipeline(*steps)
    inner = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return GridSearchCV(pipeline, {_c_name(pipeline): list(grid)}, cv=inner)


def _c_name(pipeline: Any) -> str:
    return f"{pipeline.steps[-1][0]}__C"


def _chosen_c(fitted: GridSearchCV) -> float:
    return float(fitted.best_params_[_c_name(fitted.best_estimator_)])


def _numpy(values: Tensor) -> np.ndarray[Any, Any]:
    return values.detach().cpu().numpy()


def _arrays(
    features: Tensor, labels: Tensor | None, split: str, smallest_class: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Checked features and labels; every class must have a member in each of the folds."""
    labels = require_features(features, labels, split)
    require_classes(labels, split)
    classes, counts = torch.unique(labels, return_counts=True)
    rarest = int(counts.argmin())
    if counts[rarest] < smallest_class:
        raise UserError(
            f"Class {int(classes[rarest])} has {int(counts[rarest])} items, too few for "
            f"{smallest_class} stratified folds. Use fewer folds, or leave that class out."
        )
    return _numpy(features), _numpy(labels)
