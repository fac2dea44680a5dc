"""Batches in an order that depends on the seed and the epoch alone, from any batch onwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from macl.core import worker_errors
from macl.core.sharding import ShardedBatches
from macl.modalities.protocols import Dataset, Inputs, Views


class Batch(NamedTuple):
    """The input of a training step."""

    inputs: Inputs
    indices: Tensor
    """(B,) positions in the data set."""
    groups: Tensor | None
    """(B,) integers; samples of one group are duplicates and never each other's negatives. Where
    samples bring hard negatives, the groups of those follow, (2B,) in all."""


class ResumableLoader(DataLoader[Any]):
    """A loader whose position within an epoch is part of the checkpoint."""

    def __init__(
        self, dataset: Dataset, batches: ShardedBatches, workers: int, views: Views | None = None
    ) -> None:
        # Workers find duplicates too.
        samples = _Samples(dataset, None if views is None else views.groups)
        super().__init__(
            samples,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=samples.collate,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            timeout=worker_errors.READ_TIMEOUT if workers else 0,
        )
        self.batches = batches
        self.done = 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self.done = self.batches.start
        for batch in super().__iter__():
            self.done += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins: what workers have read ahead does not count."""
        return self.batches.state(self.done)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next epoch there."""
        self.batches.resume(state)


class _Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Dataset, groups: Callable[[Inputs], Tensor] | None) -> None:
        self.dataset, self.groups = dataset, groups

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def collate(self, samples: list[tuple[int, Any]]) -> Batch:
        indices, items = zip(*samples, strict=True)
        inputs = self.dataset.collate(list(items))
        groups = None if self.groups is None else self.groups(inputs)
        return Batch(inputs, torch.tensor(indices), groups)
