"""What all probes share: the checks of their input and top-k accuracy."""

from __future__ import annotations

from torch import Tensor

from macl.core.errors import UserError


def require_labels(labels: Tensor | None, split: str) -> Tensor:
    """The labels of a split, or a `UserError` when it has none; `split` is "train" or "test"."""
    if labels is None:
        raise UserError(
            f"The {split} data have no labels, and this evaluation needs them. "
            "Use a labeled data set, or choose a protocol without labels."
        )
    return labels


def require_features(features: Tensor, labels: Tensor | None, split: str) -> Tensor:
    """Check an (N, D) feature matrix against its (N,) labels; returns the labels on its device."""
    labels = require_labels(labels, split)
    if features.ndim != 2 or labels.shape != features.shape[:1] or len(features) == 0:
        raise UserError(
            f"The {split} data need one row of features per label and at least one row; "
            f"got features {tuple(features.shape)} and labels {tuple(labels.shape)}."
        )
    if not features.isfinite().all():
        raise UserError(
            f"The {split} features hold NaN or infinite values: the encoder has diverged. "
            "Train again with a lower learning rate or full precision."
        )
    if labels.min() < 0:
        raise UserError(
            f"The {split} labels hold the negative class {int(labels.min())}; "
            "classes count from 0. Leave unlabeled items out of the evaluation."
        )
    return labels.to(features.device).long()


def require_classes(labels: Tensor, split: str) -> None:
    """Raise `UserError` unless the labels name at least two classes."""
    if (labels == labels[0]).all():
        raise UserError(
            f"All {len(labels)} {split} items belong to class {int(labels[0])}; "
            "a classifier needs at least two classes. Check the labels or the subset."
        )


def require_split(
    train: Tensor, train_labels: Tensor | None, test: Tensor, test_labels: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """The checked labels of training and test data, and one more than the largest class."""
    known = require_features(train, train_labels, "train")
    asked = require_features(test, test_labels, "test")
    require_classes(known, "train")
    return known, asked, max(int(known.max()), int(asked.max())) + 1


def top_accuracies(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Percent of rows whose class is the best of (M, C) `scores`, or among the best five.

    "top5" is left out where there are five classes or fewer: it would always be 100.
    """
    depths = (1, 5) if scores.shape[1] > 5 else (1,)
    ranked = scores.topk(depths[-1], dim=1).indices
    hits = ranked == labels[:, None]
    return {f"top{k}": 100 * hits[:, :k].any(dim=1).double().mean().item() for k in depths}
