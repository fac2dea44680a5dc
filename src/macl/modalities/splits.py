"""Subsets of data, the same every time, and classes by number."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from macl.core.errors import SkippedInputWarning, UserError
from macl.modalities.protocols import Dataset, Inputs

TEST_SHARE = 0.2
"""Of labeled data without a test split, what evaluation holds out for testing."""


class Subset(Dataset):
    """Some items of a data set, in the given order."""

    def __init__(self, dataset: Dataset, indices: torch.Tensor) -> None:
        self.dataset, self.indices = dataset, indices.tolist()
        self.labels = None if dataset.labels is None else dataset.labels[indices]
        self.names = [dataset.names[i] for i in self.indices]
        self.classes, self.has_negatives = dataset.classes, dataset.has_negatives

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> object:
        return self.dataset[self.indices[index]]

    def size(self, index: int) -> int:
        """As large as it is in the whole data set."""
        return self.dataset.size(self.indices[index])

    def collate(self, samples: list[Any]) -> Inputs:
        """As the whole data set joins its samples."""
        return self.dataset.collate(samples)


def has_classes(dataset: Dataset) -> bool:
    """Whether the items belong to two classes at least."""
    return dataset.labels is not None and len(dataset.labels.unique()) > 1


def number_classes(values: Sequence[str | None]) -> tuple[Tensor | None, list[str]]:
    """(N,) classes and their names, in order; None where a value is missing."""
    if any(value is None for value in values):
        return None, []
    names = {str(value) for value in values}
    # Numbers in the order of numbers: 2 before 10.
    numeric = all(value.isdecimal() for value in names)
    classes = sorted(names, key=lambda v: (int(v) if numeric else 0, v))
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[str(value)] for value in values]), classes


def same_classes(train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Both data sets, which must have labels, with one numbering of the classes by their names."""
    classes = sorted({*train.classes, *test.classes})
    both = copy.copy(train), copy.copy(test)
    for dataset, split in zip(both, ("train", "test"), strict=True):
        if dataset.labels is None:
            raise UserError(f"the {split} data have no labels: set data.label to their column.")
        number = torch.tensor([classes.index(name) for name in dataset.classes])
        dataset.labels, dataset.classes = number[dataset.labels], classes
    return both


def picked(values: Any, indices: Tensor) -> Any:
    """The values at `indices`: of None, a tensor, a list, or what selects by itself."""
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values[indices]
    if hasattr(values, "select"):
        return values.select(indices)
    return [values[i] for i in indices.tolist()]


def random_subset(count: int, limit: int | None, seed: int = 0) -> Tensor:
    """At most `limit` of the positions 0 … count-1: a random choice, ascending, int64."""
    if limit is None or limit >= count:
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:limit].sort().values


def stratified_split(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ascending positions of (train, test), with the same proportions of classes in both.

    A class with a single item is in train alone.
    """
    from sklearn.model_selection import train_test_split

    _, inverse, counts = labels.unique(return_inverse=True, return_counts=True)
    several = (counts[inverse] > 1).nonzero().flatten()
    classes = int((counts > 1).sum())
    test = min(max(classes, round(share * len(several))), len(several) - classes)
    if test < 1:
        return torch.arange(len(labels)), torch.arange(0)
    _, held = train_test_split(
        several.numpy(), test_size=test, random_state=seed, stratify=labels[several].numpy()
    )
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    is_test[torch.from_numpy(held)] = True
    return (~is_test).nonzero().flatten(), is_test.nonzero().flatten()


def hold_out_for_test(train: Dataset, missing: UserError) -> tuple[Dataset, Dataset]:
    """Training data without a test split of its own, divided for evaluation; says so in a warning.

    `missing` is raised where there are no classes to stratify by.
    """
    if train.labels is None or not has_classes(train):
        raise missing
    chosen, held = stratified_split(train.labels, TEST_SHARE)
    if not len(held):
        raise missing
    warnings.warn(
        f"there is no test split: {len(held):,} of the {len(train):,} training items, stratified "
        "by class, are held out for testing. An encoder that was trained on these data saw them, "
        "without their labels; train with data.holdout=0.2 to keep a part unseen.",
        SkippedInputWarning,
        stacklevel=2,
    )
    return Subset(train, chosen), Subset(train, held)
