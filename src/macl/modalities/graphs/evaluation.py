"""Evaluation of graph encoders: cross-validation over the embeddings of all graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, from_numpy, nn

from macl.core.errors import UserError
from macl.modalities.graphs.inactive import without_inactive_units
from macl.modalities.graphs.sections import GraphEvaluationConfig
from macl.modalities.protocols import Dataset, Embed
from macl.probes.classical import CrossValidation, logistic_cross_validation, svm_cross_validation
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score


def evaluate_graphs(
    config: GraphEvaluationConfig, dataset: Dataset, embed: Embed, seed: int, encoder: nn.Module
) -> list[Score]:
    """Mean test accuracy in percent over stratified outer folds, one score per protocol.

    svm       RBF support vector machine, C by inner cross-validation
    logistic  logistic regression on standardised features, C likewise
    knn       weighted nearest neighbours

    `details` holds the value of every fold ("folds"), their standard deviation ("std"), the
    settings, and how many units of `encoder` training never used ("inactive_units"). Those are kept
    out of the embedding: see `graphs.inactive`. Where there are any, "accuracy-plain" is the
    accuracy with them.
    """
    labels = require_labels(dataset.labels, "test")
    with without_inactive_units(encoder) as inactive:
        features = embed(dataset)
    found = {"accuracy": features}
    if inactive:
        found["accuracy-plain"] = embed(dataset)
    scores = []
    for protocol in config.protocols:
        for metric, each in found.items():
            score = _score(protocol, config, each, labels, seed)
            details = {**score.details, "inactive_units": inactive}
            scores.append(replace(score, metric=metric, details=details))
    return scores


def _score(
    protocol: str, config: GraphEvaluationConfig, features: Tensor, labels: Tensor, seed: int
) -> Score:
    details: dict[str, Any] = {"n": len(features), "seed": seed}
    if protocol == "knn":
        folds = _knn_folds(config, features, labels, seed)
        mean, std = float(np.mean(folds)), float(np.std(folds))
        details |= {"k": config.k, "temperature": config.temperature}
    else:
        result = _nested(protocol, config, features, labels, seed)
        folds, mean, std = result.folds, result.mean, result.std
        details |= {"chosen_c": list(result.chosen_c), "inner_folds": config.inner_folds}
    details |= {"folds": list(folds), "std": std}
    return Score(protocol, "accuracy", mean, details=details)


def _nested(
    protocol: str, config: GraphEvaluationConfig, features: Tensor, labels: Tensor, seed: int
) -> CrossValidation:
    validate = svm_cross_validation if protocol == "svm" else logistic_cross_validation
    return validate(features, labels, seed=seed, folds=config.folds, inner_folds=config.inner_folds)


def _knn_folds(
    config: GraphEvaluationConfig, features: Tensor, labels: Tensor, seed: int
) -> tuple[float, ...]:
    rarest = int(labels.bincount().min())
    if rarest < config.folds:
        raise UserError(
            f"evaluation.folds={config.folds}: the rarest class has only {rarest} graphs. "
            "Use fewer folds."
        )
    splitter = StratifiedKFold(config.folds, shuffle=True, random_state=seed)
    accuracies = []
    for fold in splitter.split(features.numpy(), labels.numpy()):
        train, test = map(from_numpy, fold)
        result = knn_accuracy(
            features[train],
            labels[train],
            features[test],
            labels[test],
            k=config.k,
            temperature=config.temperature,
        )
        accuracies.append(result["top1"])
    return tuple(accuracies)
