"""The queue: order, wrap-around, what a checkpoint holds, the nearest row."""

from __future__ import annotations

from collections import deque

import loops
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macl.methods.queue import Queue


def unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


@given(
    size=st.integers(1, 7), pushes=st.lists(st.integers(0, 16), max_size=6), seed=st.integers(0, 99)
)
def test_it_is_a_deque_that_wraps_around(size: int, pushes: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    queue = Queue(size, 3).double()
    reference = deque(queue.rows.clone(), maxlen=size)
    for count in pushes:
        rows = torch.randn(count, 3, dtype=torch.float64)
        queue.push(rows)
        reference.extend(unit(rows))
    oldest_first = queue.rows.roll(-int(queue.pointer), dims=0)
    torch.testing.assert_close(oldest_first, torch.stack(list(reference)))


def test_rows_start_as_random_directions() -> None:
    queue = Queue(50, 8)
    torch.testing.assert_close(queue.rows.norm(dim=1), torch.ones(50))
    assert len(queue.rows.unique(dim=0)) == 50


def test_the_checkpoint_holds_rows_and_pointer() -> None:
    queue, other = Queue(5, 3), Queue(5, 3)
    queue.push(torch.randn(3, 3))
    assert set(queue.state_dict()) == {"rows", "pointer"}
    other.load_state_dict(queue.state_dict())
    assert torch.equal(other.rows, queue.rows)
    assert int(other.pointer) == 3


def test_pushing_keeps_no_graph() -> None:
    queue = Queue(4, 3)
    queue.push(torch.randn(2, 3, requires_grad=True))
    assert not queue.rows.requires_grad


@given(seed=st.integers(0, 999), size=st.integers(1, 9))
def test_nearest_is_the_most_similar_row(seed: int, size: int) -> None:
    torch.manual_seed(seed)
    queue = Queue(size, 3).double()
    queries = torch.randn(5, 3, dtype=torch.float64)
    found = queue.nearest(queries)
    expected = torch.stack([loops.nearest(query, queue.rows) for query in queries])
    assert torch.equal(found, expected)


def test_an_empty_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        Queue(0, 3)
