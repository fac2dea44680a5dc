"""The two sums of a graph network, over neighbours and over graphs, as products and segments.

Both are what gather and scatter compute, without the (E, F) and (N, F) copies that these make
forward and backward; on a CPU that is most of the time of a narrow network.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from macl.modalities.graphs.batching import pointers


class Adjacency:
    """The edges of a batch as two sparse matrices: one sums over incoming edges, one outgoing.

    Args:
        edge_index: (2, E) edges u → v.
        nodes: N, their number.
    """

    def __init__(self, edge_index: Tensor, nodes: int) -> None:
        source, target = edge_index
        self.incoming = _rows(target, source, nodes)
        self.outgoing = _rows(source, target, nodes)

    def neighbour_sum(self, hidden: Tensor) -> Tensor:
        """(N, F) to (N, F): Σ_{u→v} h_u for each node v."""
        return _Product.apply(hidden, self.incoming, self.outgoing)


def graph_sum(hidden: Tensor, ptr: Tensor, batch: Tensor) -> Tensor:
    """(N, F) nodes to (B, F): the sum over each graph's nodes, which lie together.

    Args:
        hidden: (N, F).
        ptr: (B+1,) where each graph's nodes start.
        batch: (N,) the graph of each node.
    """
    return _Segments.apply(hidden, ptr, batch)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return _times(matrix, hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _times(ctx.transposed, grad), None, None


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ptr: Tensor, batch: Tensor) -> Tensor:
        ctx.save_for_backward(batch)
        rows = torch.arange(len(hidden), device=ptr.device)
        return _times(_ones(ptr, rows, len(hidden)), hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (batch,) = ctx.saved_tensors
        return grad.index_select(0, batch), None, None


def _times(matrix: Tensor, dense: Tensor) -> Tensor:
    """matrix @ dense in the type of `dense`; half precision sums in float32, as none is sparse."""
    wide = torch.promote_types(dense.dtype, torch.float32)
    with torch.autocast(dense.device.type, enabled=False):
        return (matrix.to(wide) @ dense.to(wide)).to(dense.dtype)


def _rows(row: Tensor, column: Tensor, nodes: int) -> Tensor:
    """The (N, N) CSR matrix with a 1 at each (row, column)."""
    if bool((row[1:] < row[:-1]).any()):
        row, order = row.int().sort(stable=True)  # 32 bits sort twice as fast as 64
        column = column.index_select(0, order)
    return _ones(pointers(torch.bincount(row, minlength=nodes)), column, nodes)


def _ones(ptr: Tensor, column: Tensor, width: int) -> Tensor:
    """A CSR matrix of ones: row r has them at the columns ptr[r] … ptr[r+1]-1 of `column`."""
    ones = torch.ones(len(column), device=ptr.device)
    size = (len(ptr) - 1, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta, once per process
        return torch.sparse_csr_tensor(ptr, column, ones, size, check_invariants=False)
