"""Evaluation of frozen features from train to test: neighbors, classifiers, geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from macl import geometry
from macl.core.seeding import mix
from macl.modalities.protocols import Dataset, Embed
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.linear import linear_probe
from macl.probes.score import Score


def scores_of(
    protocol: str, values: Mapping[str, Any], split: str, task: str = "", **details: Any
) -> list[Score]:
    """A score for each metric of `values`, numbers or scalar tensors."""
    return [
        Score(protocol, metric, float(value), split, task=task, details=details)
        for metric, value in values.items()
    ]


def probe_scores(
    config: Any, train: Dataset, test: Dataset, embed: Embed, seed: int, split: str = "test"
) -> list[Score]:
    """Evaluate frozen features by those of `config.protocols` below; `split` says what `test` is.

    knn       top1 (and top5 above 5 classes), in percent
    linear    top1 at the last epoch, and top1-best over all epochs; top5 likewise. With
              linear.augment, each epoch sees new crops and flips of the training images
    logistic  top1 of scikit-learn's logistic regression on standardized features
    geometry  of the test features, which are the backbone's and not the projector's (task
              "backbone"): uniformity, effective-rank and, with labels, tolerance

    Raises `UserError` before any encoding where a probe would miss its labels.
    """
    asked = set(config.protocols)
    classified = asked & {"knn", "linear", "logistic"}
    if classified:
        require_labels(train.labels, "train")
        require_labels(test.labels, "test")
    features = embed(test)
    scores: list[Score] = []

    def add(protocol: str, values: Mapping[str, float], task: str = "", **details: Any) -> None:
        details["n_test"] = len(features)
        scores.extend(scores_of(protocol, values, split, task, **details))

    def augmented(epoch: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(mix(seed, epoch))
            return embed(train, augmented=True)

    if classified:
        known = embed(train)
        arrays = (known, train.labels, features, test.labels)
        shared: dict[str, Any] = {"n_train": len(known)}
        if "knn" in asked:
            values = knn_accuracy(*arrays, k=config.k, temperature=config.temperature)
            k = min(config.k, len(known))
            add("knn", values, k=k, temperature=config.temperature, **shared)
        if "logistic" in asked:
            from macl.probes.classical import logistic_accuracy  # scikit-learn takes a second

            found = logistic_accuracy(*arrays, seed=seed)
            add("logistic", {"top1": found.accuracy}, c=found.chosen_c, seed=seed, **shared)
        if "linear" in asked:
            fresh = augmented if config.linear.augment else None
            result = linear_probe(config.linear, *arrays, seed, fresh)
            shared = {**config.linear.model_dump(), **shared, "seed": seed}
            add("linear", result.last, which="last", epoch=config.linear.epochs, **shared)
            best = {f"{metric}-best": value for metric, value in result.best.items()}
            add("linear", best, which="best", epoch=result.best_epoch, **shared)
    if "geometry" in asked:
        values = {
            "uniformity": geometry.uniformity(features).item(),
            "effective-rank": geometry.effective_rank(features).item(),
        }
        labels = test.labels
        if labels is not None and len(labels.unique()) < len(labels):  # it is of pairs of one class
            values["tolerance"] = geometry.tolerance(features, labels).item()
        add("geometry", values, "backbone", dimensions=features.shape[1], of="backbone")
    return scores
