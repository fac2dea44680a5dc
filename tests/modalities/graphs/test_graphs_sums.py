"""The sums of a graph network against gather and scatter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import global_add_pool

from macl.modalities.graphs.batching import graph_batch, pointers
from macl.modalities.graphs.encoders import GIN
from macl.modalities.graphs.sums import Adjacency, graph_sum


@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_closed_sum_and_its_gradient(nodes: int, edges: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    edge_index = torch.randint(nodes, (2, edges))  # in any order, with loops and repeats
    hidden = torch.randn(nodes, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(nodes, width, dtype=torch.float64)
    ours = Adjacency(edge_index, nodes).closed_sum(hidden)
    expected = hidden.clone()
    for u, v in edge_index.T.tolist():
        expected = expected.index_add(0, torch.tensor([v]), hidden[[u]])
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        torch.autograd.grad(ours, hidden, weight),
        torch.autograd.grad(expected, hidden, weight),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_graph_sum_is_the_sum_pool(dtype: torch.dtype) -> None:
    sizes = torch.tensor([3, 1, 5])
    batch = torch.repeat_interleave(sizes)
    hidden = torch.randn(9, 4, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, 4, dtype=dtype)
    ours, theirs = graph_sum(hidden, pointers(sizes), batch), global_add_pool(hidden, batch)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs)
    (g1,), (g2,) = (torch.autograd.grad(out, hidden, weight) for out in (ours, theirs))
    torch.testing.assert_close(g1, g2)


def test_gin_computes_what_pyg_s_layers_compute() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([4, 2, 6])
    offsets = pointers(sizes)
    edges = torch.cat(
        [torch.randint(int(n), (2, 7)) + o for n, o in zip(sizes, offsets[:-1], strict=True)], dim=1
    )
    view = graph_batch(torch.randn(12, 3), edges, offsets)
    gin = GIN(3, hidden=5, layers=2)
    hidden, pooled = view.x, []
    for conv, norm in zip(gin.convs, gin.norms, strict=True):
        hidden = norm(torch.relu(conv(hidden, view.edge_index)))
        pooled.append(global_add_pool(hidden, view.batch))
    torch.testing.assert_close(gin(view), torch.cat(pooled, dim=1))


def test_gin_runs_under_bfloat16_autocast() -> None:
    view = graph_batch(
        torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 0, 3]]), torch.tensor([0, 2, 4])
    )
    gin = GIN(3, hidden=5, layers=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = gin(view)
    out.float().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in gin.parameters() if p.grad is not None)
