"""Evaluation of graph encoders: cross-validation over the embeddings of all graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, from_numpy, nn

from macl.core.errors import UserError
from macl.modalities.graphs.dead_batchnorm import without_inactive_units
from macl.modalities.graphs.sections import GraphEvaluationConfig
from macl.modalities.protocols import Dataset, Embed
from macl.probes.classical import logistic_cross_validation, svm_cross_validation
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score


def evaluate_graphs(
    config: GraphEvaluationConfig, dataset: Dataset, embed: Embed, seed: int, encoder: nn.Module
) -> list[Score]:
    """Mean test accuracy in percent over stratified outer folds, one score per protocol.

    svm       RBF support vector machine, C by inner cross-validation
    logistic  logistic regression on standardized features, C likewise
    knn       weighted nearest neighbors

    `details` holds the value of every fold ("folds"), their standard deviation ("std"), the
    settings, and how many units of `encoder` training never used ("inactive_units"). Those are kept
    out of the embedding: see `graphs.dead_batchnorm`. Where there are any, "accuracy-plain" is the
    accuracy with them.
    """
    labels = require_labels(dataset.labels, "test")
    with without_inactive_units(encoder) as inactive:
        features = {"accuracy": embed(dataset)}
    if inactive:
        features["accuracy-plain"] = embed(dataset)
    scores = []
    for protocol in config.protocols:
        for metric, vectors in features.items():
            folds, settings = _cross_validated(protocol, config, vectors, labels, seed)
            details = {"n": len(vectors), "seed": seed, **settings, "folds": list(folds)}
            details |= {"std": float(np.std(folds)), "inactive_units": inactive}
            scores.append(Score(protocol, metric, float(np.mean(folds)), details=details))
    return scores


def _cross_validated(
    protocol: str, config: GraphEvaluationConfig, features: Tensor, labels: Tensor, seed: int
) -> tuple[Sequence[float], dict[str, Any]]:
    """The accuracy of every fold, and the settings."""
    if protocol == "knn":
        votes = {"k": config.k, "temperature": config.temperature}
        return _knn_folds(config.folds, features, labels, seed, votes), votes
    validate = svm_cross_validation if protocol == "svm" else logistic_cross_validation
    inner = config.inner_folds
    result = validate(features, labels, seed=seed, folds=config.folds, inner_folds=inner)
    return result.folds, {"chosen_c": list(result.chosen_c), "inner_folds": inner}


def _knn_folds(
    count: int, features: Tensor, labels: Tensor, seed: int, votes: dict[str, Any]
) -> list[float]:
    rarest = int(labels.bincount().min())
    if rarest < count:
        raise UserError(
            f"evaluation.folds={count}: the rarest class has only {rarest} graphs. Use fewer folds."
        )
    splitter = StratifiedKFold(count, shuffle=True, random_state=seed)
    folds = [map(from_numpy, f) for f in splitter.split(np.zeros(len(labels)), labels.numpy())]
    return [
        knn_accuracy(features[train], labels[train], features[test], labels[test], **votes)["top1"]
        for train, test in folds
    ]
