"""scikit-learn's classifiers on frozen features; hyper-parameters are chosen on training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from macl.core.errors import UserError
from macl.core.progress import track
from macl.probes.common import require_classes, require_features
from macl.probes.knn import knn_accuracy

Array = np.ndarray[Any, Any]

C_GRID = tuple(10.0**power for power in range(-3, 4))
"""GraphCL's values of the inverse regularization C: 1e-3 … 1e3."""


class HoldOut(NamedTuple):
    """Accuracy in percent on a test set, and the C that a search on train chose."""

    accuracy: float
    chosen_c: float | None = None


def cross_validation(
    protocol: str,
    features: Tensor,
    labels: Tensor | None,
    *,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 5,
    grid: Sequence[float] = C_GRID,
    k: int = 20,
    temperature: float = 0.1,
) -> list[HoldOut]:
    """Stratified cross-validation, for data without a fixed test set: what each fold gives.

    svm       GraphCL's protocol: RBF support vector machine on raw features, C by inner folds
    logistic  logistic regression on standardized features, C likewise
    knn       weighted nearest neighbors, `k` of them, with `temperature`
    """
    labels = _require_folds(features, labels, "all", folds)
    x, y = _numpy(features), _numpy(labels)

    def judge(train: Array, test: Array) -> HoldOut:
        if protocol == "knn":
            parts = features[train], labels[train], features[test], labels[test]
            return HoldOut(knn_accuracy(*parts, k=k, temperature=temperature)["top1"])
        make = svm_classifier if protocol == "svm" else logistic_classifier
        classifier = make(grid=grid, folds=inner_folds, seed=seed)
        return _tested(classifier.fit(x[train], y[train]), x[test], y[test])

    splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y)
    return [judge(*split) for split in track(splits, "Cross-validation", total=folds)]


def logistic_accuracy(
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    *,
    seed: int = 0,
    folds: int = 5,
    grid: Sequence[float] = C_GRID,
) -> HoldOut:
    """Logistic regression on a fixed split: C by cross-validation on train, then tested once.

    (N, D) and (M, D) features. `seed` shuffles the `folds` of the search; every class needs that
    many members. `grid` has the values of C to try.
    """
    train_labels = _require_folds(train, train_labels, "train", folds)
    test_labels = require_features(test, test_labels, "test")
    fitted = logistic_classifier(grid=grid, folds=folds, seed=seed)
    fitted.fit(_numpy(train), _numpy(train_labels))
    return _tested(fitted, _numpy(test), _numpy(test_labels))


def logistic_classifier(*, grid: Sequence[float], folds: int, seed: int) -> GridSearchCV:
    """Logistic regression whose C is searched by stratified cross-validation inside `fit`."""
    # The scaler sits inside the pipeline so that it never sees a held-out fold.
    steps = [("scaler", StandardScaler()), ("classifier", LogisticRegression(max_iter=1000))]
    inner = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return GridSearchCV(Pipeline(steps), {"classifier__C": list(grid)}, cv=inner)


def svm_classifier(*, grid: Sequence[float], folds: int, seed: int) -> GridSearchCV:
    """A support vector machine with an RBF kernel, whose C is searched likewise."""
    inner = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return GridSearchCV(SVC(kernel=_scaled_rbf), {"C": list(grid)}, cv=inner)


def _scaled_rbf(x: Array, train: Array) -> Array:
    """SVC's own kernel with gamma="scale", γ = 1/(D·Var train), in a third of libsvm's time."""
    variance = train.var()
    return rbf_kernel(x, train, gamma=1 / (train.shape[1] * variance) if variance else 1.0)


def _tested(fitted: GridSearchCV, x: Array, y: Array) -> HoldOut:
    (chosen,) = fitted.best_params_.values()
    return HoldOut(100 * float(fitted.score(x, y)), float(chosen))


def _require_folds(features: Tensor, labels: Tensor | None, split: str, folds: int) -> Tensor:
    """The checked labels; every class must have a member in each of the folds."""
    labels = require_features(features, labels, split)
    require_classes(labels, split)
    classes, counts = torch.unique(labels, return_counts=True)
    rarest = int(counts.argmin())
    if counts[rarest] < folds:
        raise UserError(
            f"Class {int(classes[rarest])} has {int(counts[rarest])} items, too few for "
            f"{folds} stratified folds. Use fewer folds, or leave that class out."
        )
    return labels


def _numpy(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
