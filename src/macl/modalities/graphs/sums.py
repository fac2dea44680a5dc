"""The two sums of a graph network, over neighbors and over graphs, each a bag of rows.

Both are what gather and scatter compute, without the (E, F) and (N, F) copies that these make
forward and backward. `embedding_bag` sums rows where they lie: on a CPU several times faster than
gather and scatter, and than a product with a sparse matrix.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Bags = tuple[Tensor, Tensor]
"""R lists of rows: (E,) rows and (R+1,) ptr; list r is rows[ptr[r]] … rows[ptr[r+1]-1]."""


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
    return _BagSum.apply(hidden, (numbers[:-1], ptr), (batch, numbers))


class _BagSum(torch.autograd.Function):
    """(N, F) to (R, F). The gradient of a row is a sum too, over the bags that it is in."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bags: Bags, transposed: Bags) -> Tensor:
        ctx.transposed = transposed
        return F.embedding_bag(bags[0], hidden, bags[1], mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows, ptr = ctx.transposed
        summed = F.embedding_bag(rows, grad.contiguous(), ptr, mode="sum", include_last_offset=True)
        return summed, None, None


def _bags(node: Tensor, other: Tensor, nodes: int) -> Bags:
    """For each node the `other` ends of its edges."""
    # Whether they are sorted already is not read from a device, which would wait.
    if not node.is_cpu or bool((node[1:] < node[:-1]).any()):
        node, order = node.int().sort(stable=True)  # 32 bits sort twice as fast as 64
        other = other.index_select(0, order)
    starts = torch.arange(nodes + 1, dtype=node.dtype, device=node.device)
    return other.contiguous(), torch.searchsorted(node.contiguous(), starts)
