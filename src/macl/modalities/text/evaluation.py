"""Evaluation of sentence encoders: SentEval's fourteen tasks, and probes on labeled sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from macl.core.errors import UserError
from macl.modalities.protocols import Dataset
from macl.modalities.text.embedding import Encode, embed_once
from macl.modalities.text.sections import (
    GROUPS,
    PROBES,
    STS_TASKS,
    TRANSFER_TASKS,
    TextEvaluationConfig,
)
from macl.modalities.text.senteval import find_root, read_sts, read_transfer
from macl.modalities.text.sts import sts_score
from macl.modalities.text.transfer import transfer_score
from macl.probes.classical import logistic_accuracy
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score


def evaluate_text(
    config: TextEvaluationConfig,
    encode: Encode,
    *,
    train: Dataset | None = None,
    test: Dataset | None = None,
    seed: int = 0,
    split: str = "test",
) -> list[Score]:
    """Evaluate a frozen encoder, given as a function from sentences to vectors.

    `train`, `test` and `split`, which says what `test` is, are needed by the probes alone. Where
    all tasks of a kind are asked for, their mean follows as task "average".
    """
    scores: list[Score] = []
    probes = [task for task in config.protocols if task in PROBES]
    if probes:
        if train is None or test is None:
            raise UserError(f"{' and '.join(probes)} need labelled train and test sentences.")
        scores += _probe(config, probes, encode, train, test, seed, split)
    sts, transfer = (_wanted(config.protocols, group) for group in GROUPS)
    if not sts and not transfer:
        return scores
    if config.senteval is None:
        raise UserError(
            "STS and transfer tasks need SentEval's data: set evaluation.senteval to its folder."
        )
    root = find_root(config.senteval)
    settings = config.aggregation, config.split
    scores += _with_average(
        [sts_score(task, read_sts(root, task, config.split), encode, *settings) for task in sts],
        STS_TASKS,
    )
    return scores + _with_average(
        [transfer_score(t, read_transfer(root, t), encode, config.transfer) for t in transfer],
        TRANSFER_TASKS,
    )


def uses_senteval(protocols: Iterable[str]) -> bool:
    """Whether some of these protocols are SentEval's tasks."""
    return bool(set(protocols) - set(PROBES))


def _wanted(tasks: tuple[str, ...], group: str) -> list[str]:
    """The single tasks of a group that are asked for, in the order of the paper's tables."""
    return [task for task in GROUPS[group] if group in tasks or task in tasks]


def _with_average(scores: list[Score], tasks: Sequence[str]) -> list[Score]:
    """The scores, and their mean where all `tasks` are among them."""
    if len(scores) < len(tasks):
        return scores
    first, value = scores[0], sum(score.value for score in scores) / len(scores)
    return [*scores, Score(first.protocol, first.metric, value, first.split, "average")]


def _probe(
    config: TextEvaluationConfig,
    probes: list[str],
    encode: Encode,
    train: Dataset,
    test: Dataset,
    seed: int,
    split: str,
) -> list[Score]:
    train_labels = require_labels(train.labels, "train")
    # Each split numbers its own classes; classes of one name are the same.
    classes = [*train.classes, *(name for name in test.classes if name not in train.classes)]
    numbers = torch.tensor([classes.index(name) for name in test.classes])
    test_labels = numbers[require_labels(test.labels, "test")]
    train_x, test_x = embed_once(encode, list(train.names), list(test.names))
    details: dict[str, Any] = {"n_train": len(train), "n_test": len(test)}
    scores = []
    if "knn" in probes:
        votes = knn_accuracy(
            train_x, train_labels, test_x, test_labels, k=config.k, temperature=config.temperature
        )
        settings = details | {"k": min(config.k, len(train)), "temperature": config.temperature}
        scores += [
            Score("knn", metric, value, split, details=settings) for metric, value in votes.items()
        ]
    if "logistic" in probes:
        result = logistic_accuracy(train_x, train_labels, test_x, test_labels, seed=seed)
        settings = details | {"c": result.chosen_c, "seed": seed}
        scores.append(Score("logistic", "top1", result.accuracy, split, details=settings))
    return scores
