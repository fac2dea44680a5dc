"""Evaluation of sentence encoders: SentEval's fourteen tasks, and probes on labeled sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from macl.core.errors import UserError
from macl.modalities.protocols import Dataset
from macl.modalities.splits import same_classes
from macl.modalities.text.embedding import Encode, embed_once
from macl.modalities.text.sections import GROUPS, PROBES, STS_TASKS, TextEvaluationConfig
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
    if set(PROBES) & set(config.protocols):
        if train is None or test is None:
            raise UserError(f"{' and '.join(PROBES)} need labeled train and test sentences.")
        require_labels(train.labels, "train")
        require_labels(test.labels, "test")
        train, test = same_classes(train, test)
        known, asked = embed_once(encode, list(train.names), list(test.names))
        arrays = known, train.labels, asked, test.labels
        details: dict[str, Any] = {"n_train": len(train), "n_test": len(test)}
        if "knn" in config.protocols:
            votes = knn_accuracy(*arrays, k=config.k, temperature=config.temperature)
            knn = details | {"k": min(config.k, len(train)), "temperature": config.temperature}
            scores += [Score("knn", top, value, split, details=knn) for top, value in votes.items()]
        if "logistic" in config.protocols:
            result = logistic_accuracy(*arrays, seed=seed)
            logistic = details | {"c": result.chosen_c, "seed": seed}
            scores.append(Score("logistic", "top1", result.accuracy, split, details=logistic))
    return scores + _senteval_scores(config, encode)


def uses_senteval(protocols: Iterable[str]) -> bool:
    """Whether some of these protocols are SentEval's tasks."""
    return bool(set(protocols) - set(PROBES))


def _senteval_scores(config: TextEvaluationConfig, encode: Encode) -> list[Score]:
    if not uses_senteval(config.protocols):
        return []
    if config.senteval is None:
        raise UserError(
            "STS and transfer tasks need SentEval's data: set evaluation.senteval to its folder."
        )
    root = find_root(config.senteval)
    scores: list[Score] = []
    for group, tasks in GROUPS.items():  # in the order of the paper's tables
        asked = [task for task in tasks if group in config.protocols or task in config.protocols]
        for task in asked:
            if task in STS_TASKS:
                pairs = read_sts(root, task, config.split)
                scores.append(sts_score(task, pairs, encode, config.aggregation, config.split))
            else:
                texts = read_transfer(root, task)
                scores.append(transfer_score(task, texts, encode, config.transfer))
        if len(asked) == len(tasks):
            own = scores[-len(tasks) :]
            mean = sum(score.value for score in own) / len(own)
            scores.append(replace(own[0], value=mean, task="average", details={}))
    return scores
