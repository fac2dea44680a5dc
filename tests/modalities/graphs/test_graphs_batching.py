"""Cutting graphs out of a flat batch, against PyG's own collation."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from macl.core import batching
from macl.modalities.graphs.batching import edge_pointers, take_graphs

SIZES = (3, 1, 5, 2)


def make_graphs(with_attributes: bool) -> list[Data]:
    torch.manual_seed(0)
    graphs = []
    for size in SIZES:
        edge_index = (torch.rand(size, size) < 0.5).nonzero().T
        edge_attr = torch.randn(edge_index.size(1), 2) if with_attributes else None
        graphs.append(Data(x=torch.randn(size, 4), edge_index=edge_index, edge_attr=edge_attr))
    return graphs


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=8), st.booleans())
def test_take_equals_collating_the_same_graphs_in_that_order(
    index: list[int], with_attributes: bool
) -> None:
    graphs = make_graphs(with_attributes)
    batch = Batch.from_data_list(graphs)
    expected = Batch.from_data_list([graphs[i] for i in index])
    for edge_ptr in (None, edge_pointers(batch)):
        taken = take_graphs(batch, torch.tensor(index), edge_ptr)
        assert batching.size(taken) == taken.num_graphs == len(index)
        for key in ("x", "edge_index", "batch", "ptr") + ("edge_attr",) * with_attributes:
            assert torch.equal(taken[key], expected[key]), key
        assert ("edge_attr" in taken) == with_attributes


def test_edge_pointers_count_graphs_without_edges() -> None:
    empty = Data(x=torch.ones(2, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    pair = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]))
    batch = Batch.from_data_list([empty, pair, empty])
    assert edge_pointers(batch).tolist() == [0, 0, 2, 2]
    assert take_graphs(batch, torch.tensor([2, 1])).edge_index.tolist() == [[2, 3], [3, 2]]
