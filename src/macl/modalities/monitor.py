"""A quick score of an embedding during training."""

from __future__ import annotations

from typing import Any

import torch

from macl.modalities.protocols import Dataset, Embed, Inputs
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score


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

    def collate(self, samples: list[Any]) -> Inputs:
        """As the whole data set joins its samples."""
        return self.dataset.collate(samples)


def has_classes(dataset: Dataset) -> bool:
    """Whether the items belong to two classes at least."""
    return dataset.labels is not None and len(dataset.labels.unique()) > 1


def knn_monitor(dataset: Dataset, embed: Embed, *, most: int = 2000, k: int = 20) -> Score | None:
    """kNN accuracy within the training data: four fifths vote on the rest.

    A fixed sample of at most `most` items, no test data: a trend to watch, not a result.
    """
    labels = dataset.labels
    if labels is None or not has_classes(dataset):
        return None
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(dataset), generator=generator)[:most]
    features, classes = embed(Subset(dataset, chosen)), labels[chosen]
    cut = len(chosen) * 4 // 5
    accuracy = knn_accuracy(features[:cut], classes[:cut], features[cut:], classes[cut:], k=k)
    return Score("knn", "top1", accuracy["top1"], split="train", details={"k": k, "n": len(chosen)})
