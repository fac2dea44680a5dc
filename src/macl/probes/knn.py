"""The weighted nearest-neighbor probe: no training, one pass over the features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.core.similarity import nearest_rows
from macl.probes.common import require_split, top_accuracies


@torch.no_grad()
def knn_predict(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    classes: int,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> Tensor:
    """Votes of the k nearest training items, weighted by exp(cos / t): (M, C), each row sums to 1.

    score(c) = Σ_{j ∈ kNN, y_j = c} exp(cos_j / t) / Σ_{j ∈ kNN} exp(cos_j / t)

    The division leaves the ranking alone and keeps small temperatures from overflowing.

    (N, D) and (M, D) features are of any scale; all N items vote where k > N. Memory does not grow
    with N x M.
    """
    if k < 1 or temperature <= 0:
        raise ValueError(f"k={k}, temperature={temperature}: both have to be above 0.")
    keys = F.normalize(train, dim=1)
    cosines, positions = nearest_rows(F.normalize(test, dim=1), keys, k)
    weights = torch.softmax(cosines / temperature, dim=1)
    scores = test.new_zeros(len(test), classes)
    return scores.scatter_add_(1, train_labels[positions], weights)


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> dict[str, float]:
    """Percent of test items whose class neighbors predict: "top1", and "top5" above 5 classes.

    Raises `UserError` for missing labels, a single class, or features that are not finite.
    """
    known, asked, classes = require_split(train, train_labels, test, test_labels)
    scores = knn_predict(train, known, test, classes, k=k, temperature=temperature)
    return top_accuracies(scores, asked)
