"""The two sums of a graph network, over neighbors and over graphs, each a bag of rows.

Both are what gather and scatter compute, without the (E, F) and (N, F) copies that these make
forward and backward. `embedding_bag` sums rows where they lie: on a CPU several times faster than
gather and scatter, and than a product with a sparse matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Bags(NamedTuple):
    """R lists of rows: list r is rows[ptr[r]] … rows[ptr[r+1]-1]."""

    rows: Tensor
    """(E,) int64."""
    ptr: Tensor
    """(R+1,) int64."""

    def sum(self, hidden: Tensor) -> Tensor:
        """(N, F) to (R, F): the sum of each list's rows of `hidden`."""
        return F.embedding_bag(self.rows, hidden, self.ptr, mode="sum", include_last_offset=True)


class Adjacency:
    """The (2, E) edges u → v of N nodes as two lists per node: where they come from, and go to."""

    def __init__(self, edge_index: Tensor, nodes: int) -> None:
        source, target = edge_index
        self.incoming = _bags(target, source, nodes)
        self.outgoing = _bags(source, target, nodes)

    def closed_sum(self, hidden: Tensor) -> Tensor:
        """(N, F) to (N, F): h_v + Σ_{u→v} h_u for each node v."""
        summed: Tensor = _BagSum.apply(hidden, self.incoming, self.outgoing)
        return summed.add_(hidden)


def graph_sum(hidden: Tensor, ptr: Tensor, batch: Tensor) -> Tensor:
    """(N, F) nodes to (B, F): the sum over each graph's nodes, which lie together.

    ptr, (B+1,), is where each graph's nodes start; batch, (N,), the graph of each node.
    """
    numbers = torch.arange(len(hidden) + 1, device=ptr.device)
    return _BagSum.apply(hidden, Bags(numbers[:-1], ptr), Bags(batch, numbers))


class _BagSum(torch.autograd.Function):
    """The gradient of a row is a sum too, over the bags it is in: `transposed` lists them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bags: Bags, transposed: Bags) -> Tensor:
        ctx.transposed = transposed
        return bags.sum(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed.sum(grad.contiguous()), None, None


def _bags(node: Tensor, other: Tensor, nodes: int) -> Bags:
    """For each node the `other` ends of its edges."""
    # Whether they are sorted already is not read from a device, which would wait.
    if not node.is_cpu or bool((node[1:] < node[:-1]).any()):
        node, order = node.int().sort(stable=True)  # 32 bits sort twice as fast as 64
        other = other.index_select(0, order)
    starts = torch.arange(nodes + 1, dtype=node.dtype, device=node.device)
    return Bags(other.contiguous(), torch.searchsorted(node.contiguous(), starts))
