"""Batches of positions in an order that depends on the seed and the epoch alone, for each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from macl.core.errors import UserError
from macl.core.seeding import mix


class ShardedBatches:
    """Batch sampler: one seeded permutation per epoch, of whose batches every rank takes a slice.

    A short last batch is dropped, or kept as far as every rank gets the same number, two at least.
    """

    def __init__(
        self, length: int, batch_size: int, seed: int, rank: int, world: int, drop_last: bool = True
    ) -> None:
        if batch_size % world:
            raise UserError(
                f"batch_size={batch_size} is the global batch and cannot be dealt out evenly to "
                f"{world} processes; choose a multiple of {world}."
            )
        if length < 2:
            raise UserError(f"the training data has {length} sample; a contrast needs two.")
        if length < batch_size:
            raise UserError(
                f"batch_size={batch_size} is more than the {length} training samples; "
                f"choose batch_size={max(2, length // 2)} or less."
            )
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.rank, self.world = rank, world
        tail = length % batch_size // world
        self.count = length // batch_size + (not drop_last and tail >= 2)
        self.epoch = self.start = 0
        self.sampler = self  # where Lightning looks for `set_epoch`

    def set_epoch(self, epoch: int) -> None:
        """Which permutation comes next."""
        self.epoch = epoch

    def state(self, done: int) -> dict[str, Any]:
        """Batches of this epoch that are done, of which there are `done`; 0 once it is complete."""
        return {"done": done % self.count}

    def resume(self, state: dict[str, Any]) -> None:
        """Start the next epoch there."""
        self.start = state["done"]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        order = torch.randperm(self.length, generator=generator)
        first, self.start = self.start, 0
        for begin in range(first * self.batch_size, self.count * self.batch_size, self.batch_size):
            share = min(self.batch_size, self.length - begin) // self.world
            mine = begin + self.rank * share
            yield order[mine : mine + share].tolist()
