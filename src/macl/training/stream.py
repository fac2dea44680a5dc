"""Data of unknown length: parts, opened in order as training needs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macl.core.batching import ahead
from macl.core.errors import UserError
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.modalities.base import Modality
from macl.modalities.protocols import DataMark, Dataset, Inputs
from macl.modalities.records import shard_files

EPOCH = 1000
"""Optimizer steps that count as an epoch of a stream."""
ROWS = 2**32
"""Sample r of part p is at position p · `ROWS` + r."""

Place = tuple[int, int, int]
"""Where a batch begins: passes before this one, part, samples that earlier batches had of it."""


class Stream(Dataset):
    """Parts, each a data set, for a training by `steps`; a few are open at a time.

    Args:
        part: opens part 0, 1, …; None after the last one, where the next pass begins. Equal numbers
            give equal samples in every process, and when training is resumed.
    """

    def __init__(self, part: Callable[[int], Dataset | None]) -> None:
        self._open = part
        self.part: Callable[[int], Any] = functools.lru_cache(8)(part)
        first = self.part(0)
        if first is None:
            raise UserError("the stream has no data: its part 0 is None.")
        self.first, self.has_negatives = first, first.has_negatives

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self._open,)

    def __len__(self) -> int:
        return 0  # not known

    def __getitem__(self, position: int) -> Any:
        return self.part(position // ROWS)[position % ROWS]

    def name(self, position: int) -> str:
        """What a person calls the sample."""
        return str(self.part(position // ROWS).names[position % ROWS])

    def collate(self, samples: list[Any]) -> Inputs:
        """As the first part does."""
        return self.first.collate(samples)


def shard_stream(modality: Modality, data: Any) -> Stream:
    """The shards that `data.path` names, each a part."""
    files = [] if data.path is None else shard_files(data.path.expanduser())
    if not files:
        raise UserError("stream=true is for WebDataset shards, and data.path names none.")
    if data.limit or getattr(data, "holdout", 0):
        raise UserError(
            "data.holdout and data.limit are shares of all samples, and a stream's number of "
            "samples is not known: set data.holdout=0 data.limit=null, or leave stream=true out."
        )
    return Stream(functools.partial(_shard, modality, data, files))


def _shard(modality: Modality, data: Any, files: list[Path], number: int) -> Dataset | None:
    if number >= len(files):
        return None
    return modality.load(data.model_copy(update={"path": files[number]}), "train")


class StreamBatches(ShardedBatches):
    """Batch sampler: part after part, each in a seeded order, dealt out to the ranks.

    Batches go on from one part or epoch, of `count` batches, to the next; a short last one of a
    pass over the data is left out.
    """

    def __init__(
        self, stream: Stream, batch_size: int, seed: int, rank: int, world: int, count: int
    ) -> None:
        super().__init__(count * batch_size, batch_size, seed, rank, world)
        self.stream = stream
        self.places: dict[int, Place] = {0: (0, 0, 0)}
        """Batches of this epoch → where the next one begins; the last is where reading is."""

    def __iter__(self) -> Iterator[list[int]]:
        first, self.start = self.start, 0
        place = [*self.places.values()][-1]
        self.places = {first: place}
        share = self.batch_size // self.world
        with closing(self._batches(place)) as batches:
            for done in range(first + 1, self.count + 1):
                batch, self.places[done] = next(batches)
                yield batch[self.rank * share : (self.rank + 1) * share].tolist()

    def state(self, done: int) -> dict[str, Any]:
        """How to go on after `done` batches of this epoch."""
        place = self.places[done]
        return {**super().state(done), "place": [*place], "data": [*self._mark(place)]}

    def resume(self, state: dict[str, Any]) -> None:
        """Start the next epoch there; `UserError` if it is other data."""
        super().resume(state)
        turn, number, taken = state["place"]
        self.places = {self.start: (turn, number, taken)}
        self._mark(self.places[self.start]).require_same(DataMark(*state["data"]))

    def _mark(self, place: Place) -> DataMark:
        part = self.stream.part(place[1])
        return DataMark(0, "") if part is None else DataMark.of(part)

    def _batches(self, place: Place) -> Generator[tuple[Tensor, Place], None, None]:
        """(batch_size,) positions, and where the next batch begins."""
        turn, first, taken = place
        rest, empty_turns = torch.empty(0, dtype=torch.int64), 0
        for now, number, order in ahead(self._orders(turn, first)):
            if now != turn:
                turn, rest, empty_turns = now, rest[:0], empty_turns + 1
            if empty_turns == 2:
                raise UserError(f"the stream has less than batch_size={self.batch_size} samples.")
            rest, taken = torch.cat([rest, order[taken:]]), 0
            while len(rest) >= self.batch_size:
                batch, rest = rest[: self.batch_size], rest[self.batch_size :]
                empty_turns = 0
                yield batch, (turn, number, len(order) - len(rest))

    def _orders(self, turn: int, number: int) -> Iterator[tuple[int, int, Tensor]]:
        """(pass, part, its positions in order) from a part on, pass after pass."""
        while True:
            part = self.stream.part(number)
            if part is None:
                turn, number = turn + 1, 0
                continue
            generator = torch.Generator().manual_seed(mix(self.seed, turn, number))
            yield turn, number, ROWS * number + torch.randperm(len(part), generator=generator)
            number += 1
