"""Evaluation of graph encoders: cross-validation over the embeddings of all graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from macl.modalities.graphs.dead_batchnorm import without_inactive_units
from macl.modalities.graphs.sections import GraphEvaluationConfig
from macl.modalities.protocols import Dataset, Embed
from macl.probes.classical import cross_validation
from macl.probes.common import require_labels
from macl.probes.score import Score


def evaluate_graphs(
    config: GraphEvaluationConfig, dataset: Dataset, embed: Embed, seed: int, encoder: nn.Module
) -> list[Score]:
    """Mean test accuracy in percent over stratified outer folds; protocols of `cross_validation`.

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
    votes: dict[str, Any] = {"k": config.k, "temperature": config.temperature}
    folds: dict[str, Any] = {"seed": seed, "folds": config.folds, "inner_folds": config.inner_folds}
    scores = []
    for protocol in config.protocols:
        for metric, vectors in features.items():
            outer = cross_validation(protocol, vectors, labels, **folds, **votes)
            accuracies, chosen_c = map(list, zip(*outer, strict=True))
            searched = {"chosen_c": chosen_c, "inner_folds": config.inner_folds}
            details: dict[str, Any] = {"n": len(vectors), "seed": seed}
            details |= votes if protocol == "knn" else searched
            details |= {"folds": accuracies, "std": float(np.std(accuracies))}
            details["inactive_units"] = inactive
            scores.append(Score(protocol, metric, float(np.mean(accuracies)), details=details))
    return scores
