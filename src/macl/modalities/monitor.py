"""A quick score of an embedding during training."""

from __future__ import annotations

from typing import Any

import torch

from macl import distributed
from macl.criteria import cheap_criteria
from macl.modalities.protocols import Dataset, Embed, Inputs, Monitor
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

    def size(self, index: int) -> int:
        """As large as it is in the whole data set."""
        return self.dataset.size(self.indices[index])

    def collate(self, samples: list[Any]) -> Inputs:
        """As the whole data set joins its samples."""
        return self.dataset.collate(samples)


def has_classes(dataset: Dataset) -> bool:
    """Whether the items belong to two classes at least."""
    return dataset.labels is not None and len(dataset.labels.unique()) > 1


def sample(dataset: Dataset, most: int) -> torch.Tensor:
    """Indices of at most `most` items, the same every time."""
    return torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:most]


@torch.inference_mode()
def embed_together(
    embed: Embed, device: torch.device, dataset: Dataset, *, augmented: bool = False
) -> torch.Tensor:
    """`embed` a data set with all processes of torch.distributed, each a share of it.

    They exchange their rows on `device`. Every process gets all of them.
    """
    world = distributed.world_size()
    if world == 1 or len(dataset) < world:
        return embed(dataset, augmented=augmented)
    shares = torch.arange(len(dataset)).tensor_split(world)
    own = embed(Subset(dataset, shares[distributed.rank()]), augmented=augmented)
    return distributed.gather(own.to(device), [len(share) for share in shares]).to(own.device)


def monitored(
    evaluate: Monitor | None, dataset: Dataset, embed: Embed, *, most: int = 1000
) -> tuple[Score | None, dict[str, float]]:
    """The score of a monitor, if there is one, and figures that need no labels.

    The figures are of what the monitor embedded first, or of a sample of the data where it embedded
    nothing; at most `most` rows. They are for watching collapse, not for choosing:
    docs/results/criteria.md has what choosing by them costs.
    """
    seen: list[torch.Tensor] = []

    def remembered(items: Dataset, *, augmented: bool = False) -> torch.Tensor:
        seen.append(embed(items, augmented=augmented))
        return seen[-1]

    score = None if evaluate is None else evaluate(remembered)
    features = seen[0] if seen else embed(Subset(dataset, sample(dataset, most)))
    return score, cheap_criteria(features[:most])


def knn_monitor(dataset: Dataset, embed: Embed, *, most: int = 2000, k: int = 20) -> Score | None:
    """kNN accuracy within the training data: four fifths vote on the rest.

    A fixed sample of at most `most` items, no test data: a trend to watch, not a result.
    """
    labels = dataset.labels
    if labels is None or not has_classes(dataset):
        return None
    chosen = sample(dataset, most)
    features, classes = embed(Subset(dataset, chosen)), labels[chosen]
    cut = len(chosen) * 4 // 5
    accuracy = knn_accuracy(features[:cut], classes[:cut], features[cut:], classes[cut:], k=k)
    return Score("knn", "top1", accuracy["top1"], split="train", details={"k": k, "n": len(chosen)})
