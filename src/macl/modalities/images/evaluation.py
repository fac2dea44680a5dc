"""Evaluation of frozen image features: neighbours, a linear probe, geometry."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl import geometry
from macl.modalities.images.sections import ImageEvaluationConfig
from macl.modalities.protocols import Dataset, Embed
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.linear import linear_probe
from macl.probes.score import Score


def evaluate_images(
    config: ImageEvaluationConfig,
    train: Dataset,
    test: Dataset,
    embed: Embed,
    seed: int,
    split: str = "test",
) -> list[Score]:
    """Evaluate frozen features by the protocols of `config`; `split` says what `test` is.

    knn       top1 (and top5 above 5 classes), in percent
    linear    top1 at the last epoch, and top1-best over all epochs; top5 likewise
    geometry  of the test features, which are the backbone's and not the projector's (task
              "backbone"): uniformity, effective-rank and, with labels, tolerance

    Raises `UserError` before any encoding where a probe would miss its labels.
    """
    probes = {"knn", "linear"} & set(config.protocols)
    if probes:
        require_labels(train.labels, "train")
        require_labels(test.labels, "test")
    test_features = embed(test)
    scores: list[Score] = []
    if probes:
        train_features = embed(train)
        arrays = (train_features, train.labels, test_features, test.labels)
        if "knn" in probes:
            scores += _knn(config, *arrays, split=split)
        if "linear" in probes:
            scores += _linear(config, *arrays, seed=seed, split=split)
    if "geometry" in config.protocols:
        scores += _geometry(split, test_features, test.labels)
    return scores


def _knn(
    config: ImageEvaluationConfig,
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    split: str,
) -> list[Score]:
    accuracies = knn_accuracy(
        train, train_labels, test, test_labels, k=config.k, temperature=config.temperature
    )
    details = {
        "k": min(config.k, len(train)),
        "temperature": config.temperature,
        "n_train": len(train),
        "n_test": len(test),
    }
    return [
        Score("knn", metric, value, split, details=details) for metric, value in accuracies.items()
    ]


def _linear(
    config: ImageEvaluationConfig,
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    seed: int,
    split: str,
) -> list[Score]:
    result = linear_probe(config.linear, train, train_labels, test, test_labels, seed)
    details: dict[str, Any] = {
        **config.linear.model_dump(),
        "n_train": len(train),
        "n_test": len(test),
        "seed": seed,
    }
    last = details | {"which": "last", "epoch": config.linear.epochs}
    best = details | {"which": "best", "epoch": result.best_epoch}
    return [
        *(
            Score("linear", metric, value, split, details=last)
            for metric, value in result.last.items()
        ),
        *(
            Score("linear", f"{metric}-best", value, split, details=best)
            for metric, value in result.best.items()
        ),
    ]


def _geometry(split: str, features: Tensor, labels: Tensor | None) -> list[Score]:
    values = {
        "uniformity": geometry.uniformity(features),
        "effective-rank": geometry.effective_rank(features),
    }
    if labels is not None:
        values["tolerance"] = geometry.tolerance(features, labels)
    details = {"n_test": len(features), "dimensions": features.shape[1], "of": "backbone"}
    return [
        Score("geometry", metric, value.item(), split, task="backbone", details=details)
        for metric, value in values.items()
    ]
