"""How sentence encoders are judged: SentEval's fourteen tasks, and probes on labelled sentences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator

from macl.core.errors import UserError, nearest
from macl.core.section import Section
from macl.modalities.text.data import TextDataset
from macl.modalities.text.embedding import Encode, embed_once
from macl.modalities.text.senteval import (
    STS_TASKS,
    TRANSFER_TASKS,
    find_root,
    read_sts,
    read_transfer,
)
from macl.modalities.text.sts import Aggregation, sts_score
from macl.modalities.text.transfer import Protocol, transfer_score
from macl.probes.classical import logistic_accuracy
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score

_GROUPS = {"sts": STS_TASKS, "transfer": TRANSFER_TASKS}
_PROBES = ("knn", "logistic")


class TextEvaluationConfig(Section):
    """Which tasks, and how each kind of task is judged."""

    tasks: tuple[str, ...] = _PROBES
    """"knn" and "logistic" judge by the labels of the data; "sts" and "transfer", or single tasks
    of theirs ("STS-B", "MR"), by SentEval's."""
    senteval: Path | None = None
    """SentEval's data folder, the one with `downstream` in it."""
    aggregation: Aggregation = "all"
    """How the subsets of an STS task become one number."""
    transfer: Protocol = "logistic"
    """Which classifier judges transfer tasks."""
    split: Literal["test", "dev"] = "test"
    """Of STS-B and SICK-R; choose a model by dev, report test."""
    k: int = Field(default=20, ge=1)
    """Neighbours of the kNN probe."""
    temperature: float = Field(default=0.1, gt=0)
    """Of the votes of the kNN probe, not of the loss."""

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        valid = {*_PROBES, *_GROUPS, *STS_TASKS, *TRANSFER_TASKS}
        for task in tasks:
            if task not in valid:
                raise ValueError(f"unknown task {task!r}.{nearest(task, valid)}")
        return tasks


def evaluate_text(
    config: TextEvaluationConfig,
    encode: Encode,
    *,
    train: TextDataset | None = None,
    test: TextDataset | None = None,
    seed: int = 0,
) -> list[Score]:
    """Judge a frozen encoder, given as a function from sentences to vectors.

    `train` and `test` are needed by the probes alone. Where all tasks of a kind are asked for,
    their mean follows as task "average".
    """
    scores: list[Score] = []
    probes = [task for task in config.tasks if task in _PROBES]
    if probes:
        if train is None or test is None:
            raise UserError(f"{' and '.join(probes)} need labelled train and test sentences.")
        scores += _probe(config, probes, encode, train, test, seed)
    sts, transfer = (_wanted(config.tasks, group) for group in _GROUPS)
    if not sts and not transfer:
        return scores
    if config.senteval is None:
        raise UserError(
            "STS and transfer tasks need SentEval's data: set evaluation.senteval to its folder."
        )
    root = find_root(config.senteval)
    scores += _with_average(
        (
            sts_score(
                task, read_sts(root, task, config.split), encode, config.aggregation, config.split
            )
            for task in sts
        ),
        len(STS_TASKS),
    )
    scores += _with_average(
        (
            transfer_score(task, read_transfer(root, task), encode, config.transfer)
            for task in transfer
        ),
        len(TRANSFER_TASKS),
    )
    return scores


def needs_senteval(tasks: Iterable[str]) -> bool:
    """Whether all of these are SentEval's: none is judged by labelled data of the user's own."""
    return not set(_PROBES) & {task.strip() for task in tasks}


def _wanted(tasks: tuple[str, ...], group: str) -> list[str]:
    """The single tasks of a group that are asked for, in the order of the paper's tables."""
    return [task for task in _GROUPS[group] if group in tasks or task in tasks]


def _with_average(scores: Iterable[Score], complete: int) -> list[Score]:
    found = list(scores)
    if len(found) < complete:
        return found
    value = sum(score.value for score in found) / len(found)
    first = found[0]
    return [*found, Score(first.protocol, first.metric, value, first.split, "average")]


def _probe(
    config: TextEvaluationConfig,
    probes: list[str],
    encode: Encode,
    train: TextDataset,
    test: TextDataset,
    seed: int,
) -> list[Score]:
    train_labels = require_labels(train.labels, "train")
    # Each split numbers its own classes; the names tell which are the same.
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
        scores += [Score("knn", metric, value, details=settings) for metric, value in votes.items()]
    if "logistic" in probes:
        result = logistic_accuracy(train_x, train_labels, test_x, test_labels, seed=seed)
        settings = details | {"c": result.chosen_c, "seed": seed}
        scores.append(Score("logistic", "top1", result.accuracy, details=settings))
    return scores
