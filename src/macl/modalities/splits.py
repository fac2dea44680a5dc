"""Subsets that are the same every time: a random choice, a stratified part for testing."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from macl.core.errors import SkippedInputWarning, UserError
from macl.modalities.monitor import Subset, has_classes
from macl.modalities.protocols import Dataset

TEST_SHARE = 0.2
"""Of labelled data without a test split, what evaluation holds out for testing."""


def random_subset(count: int, limit: int | None, seed: int = 0) -> Tensor:
    """At most `limit` of the positions 0 … count-1: a random choice, ascending, int64."""
    if limit is None or limit >= count:
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:limit].sort().values


def stratified_split(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ascending positions of (train, test); of every class with n ≥ 2 items, round(share·n) of
    them, at least one and at most n-1, are for testing.
    """
    generator = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        count = min(max(1, round(share * len(members))), len(members) - 1)
        is_test[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~is_test).nonzero().flatten(), is_test.nonzero().flatten()


def hold_out_for_test(train: Dataset, missing: UserError) -> tuple[Dataset, Dataset]:
    """Training data without a test split of its own, divided for evaluation; says so in a warning.

    Args:
        train: the whole training split, with classes.
        missing: raised where there are no classes to stratify by.
    """
    if train.labels is None or not has_classes(train):
        raise missing
    chosen, held = stratified_split(train.labels, TEST_SHARE)
    if not len(held):
        raise missing
    warnings.warn(
        f"there is no test split: {len(held):,} of the {len(train):,} training items, stratified "
        "by class, are held out for testing. The encoder saw them in training, without their "
        "labels; train with data.holdout=0.2 to keep a part unseen.",
        SkippedInputWarning,
        stacklevel=2,
    )
    return Subset(train, chosen), Subset(train, held)
