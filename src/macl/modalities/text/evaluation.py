"""Evaluation of sentence encoders: SentEval's fourteen tasks, and probes on labeled sentences.

A transfer task is a linear classifier on frozen sentence vectors, under one of two protocols:

senteval  the original: its classifier, its nested ten folds, its weight decays, its seed
logistic  scikit-learn's logistic regression on standardized features; close to it, and fast
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.metrics import f1_score
from sklearn.model_selection import PredefinedSplit, StratifiedKFold
from torch import Tensor

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.text.linear import DECAYS, fit_linear
from macl.modalities.text.sections import (
    GROUPS,
    PROBES,
    STS_TASKS,
    Classifier,
    TextEvaluationConfig,
)
from macl.modalities.text.senteval import Texts, find_root, read_sts, read_transfer
from macl.probes.classical import logistic_classifier
from macl.probes.score import Score

FOLDS = 10
_SENTEVAL_SEED = 1111
_HELD_OUT = 0.05  # of the training items, to stop SentEval's last training early
_LOGISTIC_GRID = (1e-3, 1e-2, 1e-1, 1.0)
_LOGISTIC_INNER_FOLDS = 3

Encode = Callable[[list[str]], Tensor]
"""N sentences to an (N, D) tensor; any encoder that can be called so can be evaluated."""

Split = tuple[Tensor, Tensor | None, Tensor]
"""Positions of items: to learn from, to choose by (None: folds of the first), to test with."""

Outcome = tuple[Tensor, float]
"""What a classifier predicts for the test items of a split, and the weight decay (senteval) or C
(logistic) that was chosen without them."""


def senteval_scores(config: TextEvaluationConfig, encode: Encode) -> list[Score]:
    """SentEval's tasks that `config` names; the mean of all of a kind follows as task "average"."""
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
                scores.append(sts_score(task, pairs, encode, config.split))
            else:
                texts = read_transfer(root, task)
                scores.append(transfer_score(task, texts, encode, config.transfer))
        if len(asked) == len(tasks):
            own = scores[-len(tasks) :]
            mean = sum(score.value for score in own) / len(own)
            scores.append(replace(own[0], value=mean, task="average", details={}))
    return scores


def uses_senteval(protocols: Iterable[str]) -> bool:
    """Whether some of these protocols are SentEval's tasks."""
    return bool(set(protocols) - set(PROBES))


def embed_once(encode: Encode, *columns: list[str]) -> list[Tensor]:
    """An (N_i, D) float32 matrix on the CPU for each list of N_i sentences.

    Neither order nor repetitions change a vector: each distinct sentence is encoded once, in order.
    """
    distinct = sorted({text for column in columns for text in column}, key=lambda t: (len(t), t))
    place = {text: i for i, text in enumerate(distinct)}
    vectors = encode(distinct).detach().float().cpu()
    if not vectors.isfinite().all():
        raise UserError("The encoder gives NaN or infinite values; its training has diverged.")
    return [vectors[torch.tensor([place[text] for text in column])] for column in columns]


def sts_score(
    task: str, subsets: Mapping[str, Texts], encode: Encode, split: str = "test"
) -> Score:
    """Spearman's correlation, in percent, of cosines and gold scores over all pairs of a task."""
    columns = [side for pairs in subsets.values() for side in (pairs.first, pairs.second)]
    vectors = embed_once(encode, *columns)
    cosines = [
        F.cosine_similarity(first.double(), second.double())
        for first, second in zip(vectors[::2], vectors[1::2], strict=True)
    ]
    scores = torch.cat(cosines).numpy()
    gold = np.concatenate([pairs.numbers for pairs in subsets.values()])
    # Undefined when all cosines are equal: an encoder that has collapsed ranks nothing.
    ranks = np.ptp(scores) > 0 and np.ptp(gold) > 0
    value = 100 * float(spearmanr(scores, gold).statistic) if ranks else 0.0
    details = {"aggregation": "all", "pairs": len(gold)}
    return Score("sts", "spearman", value, split=split, task=task, details=details)


def transfer_score(
    task: str,
    parts: Mapping[str, Texts],
    encode: Encode,
    protocol: Classifier = "logistic",
    folds: int = FOLDS,
) -> Score:
    """Test accuracy of a task in percent; the mean over outer folds where it has no fixed test."""
    x, y = _features(parts, encode)
    classify = _senteval if protocol == "senteval" else _logistic
    try:
        splits = _splits(parts, y, folds)
        outcomes = classify(x, y, splits, folds)
    except ValueError as error:  # scikit-learn's, of too few items for as many folds
        raise UserError(
            f"{task} has too few items to be evaluated: {error} Are SentEval's files cut short?"
        ) from error
    truths = [y[test] for _, _, test in splits]
    accuracies = [
        100 * (predicted == truth).double().mean().item()
        for (predicted, _), truth in zip(outcomes, truths, strict=True)
    ]
    details: dict[str, Any] = {
        "chosen": [chosen for _, chosen in outcomes],
        "items": sum(map(len, truths)),
        "std": float(np.std(accuracies)),
    }
    if task == "MRPC":
        details["f1"] = 100 * float(f1_score(truths[0].numpy(), outcomes[0][0].numpy()))
    value = float(np.mean(accuracies))
    return Score(f"transfer-{protocol}", "accuracy", value, task=task, details=details)


def _features(parts: Mapping[str, Texts], encode: Encode) -> tuple[Tensor, Tensor]:
    """(N, D) features u, of pairs |u − v| beside u ∘ v, and (N,) labels of all parts in turn."""
    rows: list[tuple[int, float, str, str]] = []
    for first, second, labels in parts.values():
        # Folds go by position, so that items are put in an order of their own.
        pairs = second or [""] * len(first)
        rows += sorted(zip(map(len, first), labels, first, pairs, strict=True))
    _, classes, ones, others = map(list, zip(*rows, strict=True))
    y = torch.tensor(classes)
    if not any(others):
        return embed_once(encode, ones)[0], y
    u, v = embed_once(encode, ones, others)
    return torch.cat([(u - v).abs(), u * v], dim=1), y


def _splits(parts: Mapping[str, Texts], labels: Tensor, folds: int) -> list[Split]:
    """The task's own split, or the outer folds where it has none."""
    if "test" not in parts:
        return [(train, None, test) for train, test in _stratified(labels, folds)]
    sizes = [len(texts.numbers) for texts in parts.values()]
    places = dict(zip(parts, torch.arange(len(labels)).split(sizes), strict=True))
    return [(places["train"], places.get("dev"), places["test"])]


def _stratified(labels: Tensor, folds: int) -> list[tuple[Tensor, Tensor]]:
    splitter = StratifiedKFold(folds, shuffle=True, random_state=_SENTEVAL_SEED)
    splits = splitter.split(np.zeros(len(labels)), labels.numpy())
    return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in splits]


def _senteval(x: Tensor, y: Tensor, splits: list[Split], folds: int) -> list[Outcome]:
    """Search the weight decay on dev items or inner folds, then train once more with the best."""
    inner, last = [], []
    for train, dev, _ in splits:
        if dev is not None:
            inner.append((train, dev))
            last.append((train, dev))
            continue
        inner += [(train[some], train[rest]) for some, rest in _stratified(y[train], folds)]
        generator = torch.Generator().manual_seed(_SENTEVAL_SEED)
        order = train[torch.randperm(len(train), generator=generator)]
        held_out = int(_HELD_OUT * len(train))
        last.append((order[held_out:], order[:held_out]))
    decays = torch.tensor(DECAYS)
    search = fit_linear(x, y, inner, decays.expand(len(inner), -1), _SENTEVAL_SEED)
    means = search.accuracy.double().view(len(splits), -1, len(decays)).mean(dim=1)
    # Rounded to SentEval's two decimals: of decays with equal means, the weakest is taken.
    best = (100 * means).numpy().round(2).argmax(axis=1)
    fit = fit_linear(x, y, last, decays[best].unsqueeze(1), _SENTEVAL_SEED)
    layers = zip(splits, fit.weights[:, 0], fit.biases[:, 0], best, strict=True)
    return [((x[test] @ w.T + b).argmax(dim=1), DECAYS[i]) for (_, _, test), w, b, i in layers]


def _logistic(x: Tensor, y: Tensor, splits: list[Split], folds: int) -> list[Outcome]:
    """Search C on dev items, or on inner folds, fewer than SentEval's to be fast."""
    outcomes = []
    for train, dev, test in track(splits, "Logistic regression"):
        classifier = logistic_classifier(
            grid=_LOGISTIC_GRID, folds=_LOGISTIC_INNER_FOLDS, seed=_SENTEVAL_SEED
        )
        learned = train
        if dev is not None:
            learned = torch.cat([train, dev])
            classifier.set_params(cv=PredefinedSplit([-1] * len(train) + [0] * len(dev)))
        classifier.fit(x[learned].numpy(), y[learned].numpy())
        (chosen,) = classifier.best_params_.values()
        predicted = torch.from_numpy(classifier.predict(x[test].numpy()))
        outcomes.append((predicted, float(chosen)))
    return outcomes
