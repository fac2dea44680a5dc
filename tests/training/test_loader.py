"""The order of batches: seed and epoch alone, any number of processes, from any point onwards."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macl.core.errors import UserError
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.training.loader import ResumableLoader


class Numbers:
    """Item i is the number i."""

    labels = None
    names: tuple[str, ...] = ()

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples)


class Doubles:
    """Views to which items 0 and 1, 2 and 3, … are duplicates."""

    def __call__(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return inputs, inputs

    plain = __call__

    def groups(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs // 2


def epoch(batches: ShardedBatches, number: int) -> list[list[int]]:
    batches.set_epoch(number)
    return list(batches)


def loader(length: int = 22, batch: int = 4, workers: int = 0, seed: int = 0) -> ResumableLoader:
    return ResumableLoader(Numbers(length), ShardedBatches(length, batch, seed, 0, 1), workers)


@given(
    length=st.integers(4, 60),
    share=st.integers(1, 6),
    world=st.integers(1, 4),
    seed=st.integers(0, 9),
    number=st.integers(0, 5),
)
def test_ranks_share_the_single_process_batch(
    length: int, share: int, world: int, seed: int, number: int
) -> None:
    size = share * world
    if size < 2 or length < size:
        return
    alone = epoch(ShardedBatches(length, size, seed, 0, 1), number)
    ranks = [epoch(ShardedBatches(length, size, seed, r, world), number) for r in range(world)]
    assert all(len(batches) == length // size for batches in ranks)
    together = [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert together == alone
    seen = list(itertools.chain(*alone))
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(length))


@given(length=st.integers(4, 60), share=st.integers(1, 6), world=st.integers(1, 4))
def test_a_short_last_batch_is_dealt_out_evenly(length: int, share: int, world: int) -> None:
    size = share * world
    if size < 2 or length < size:
        return
    ranks = [list(ShardedBatches(length, size, 0, r, world, drop_last=False)) for r in range(world)]
    whole, tail = divmod(length, size)
    sizes = [share] * whole + [tail // world] * (tail // world >= 2)
    assert all([len(batch) for batch in batches] == sizes for batches in ranks)
    seen = [index for batches in ranks for batch in batches for index in batch]
    assert len(seen) == len(set(seen)) == world * sum(sizes)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    one, two = (ShardedBatches(40, 8, 3, 0, 1) for _ in range(2))
    list(two)  # an epoch more in its past
    torch.manual_seed(123)  # and another state of the global generator
    assert epoch(one, 5) == epoch(two, 5)
    assert epoch(one, 5) != epoch(one, 6)
    assert epoch(one, 5) != epoch(ShardedBatches(40, 8, 4, 0, 1), 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(workers: int) -> None:
    """Workers read ahead; what counts is what training has taken."""
    whole = [batch.indices.tolist() for batch in loader()]
    stopped = loader(workers=workers)
    taken = [b.indices.tolist() for b in itertools.islice(iter(stopped), 2)]
    state = stopped.state_dict()
    assert taken == whole[:2]
    assert state == {"done": 2}
    resumed = loader(workers=workers)
    resumed.load_state_dict(state)
    assert [batch.indices.tolist() for batch in resumed] == whole[2:]
    resumed.batches.set_epoch(1)
    assert len(list(resumed)) == len(whole)


def test_a_complete_epoch_leaves_nothing_to_skip() -> None:
    complete = loader()
    assert len(list(complete)) == len(complete) == 5
    assert complete.state_dict() == {"done": 0}


def test_batches_know_their_samples_and_their_groups() -> None:
    for batch in ResumableLoader(Numbers(8), ShardedBatches(8, 4, 0, 0, 1), 0, Doubles()):
        assert torch.equal(batch.inputs, batch.indices)
        assert torch.equal(batch.groups, batch.indices // 2)
    assert next(iter(loader())).groups is None


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UserError, match=r"more than the 10 training samples.*batch_size=5 or less"):
        ShardedBatches(10, 16, 0, 0, 1)
    with pytest.raises(UserError, match="1 sample; a contrast needs two"):
        ShardedBatches(1, 2, 0, 0, 1)


def test_a_batch_that_cannot_be_dealt_out_is_refused() -> None:
    with pytest.raises(UserError, match=r"batch_size=10.*3 processes.*multiple of 3"):
        ShardedBatches(100, 10, 0, 0, 3)


@given(st.tuples(*[st.integers(0, 2**31)] * 3), st.tuples(*[st.integers(0, 2**31)] * 3))
def test_mixed_seeds_are_valid_and_differ(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    assert 0 <= mix(*one) < 2**63
    assert (mix(*one) == mix(*two)) == (one == two)


def test_neighboring_numbers_mix_to_unrelated_bits() -> None:
    seeds = [mix(0, step, rank) for step in range(40) for rank in range(5)]
    assert len(set(seeds)) == len(seeds)
    ones = sum(bin(seed).count("1") for seed in seeds) / (63 * len(seeds))
    assert 0.45 < ones < 0.55
