"""Batches of graphs as flat arrays: build one, count its graphs, cut some out.

In every batch here the nodes of a graph, and its edges, lie together and in the order of the
graphs, as PyG's own collation leaves them. That makes cutting and filtering index arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Batch

from macl.core import batching

LONG = 200
"""Rows per graph from which on copying graph by graph is faster than row by row."""


def graph_batch(
    x: Tensor, edge_index: Tensor, ptr: Tensor, edge_attr: Tensor | None = None
) -> Batch:
    """A PyG batch of B graphs from flat arrays.

    Args:
        x: (N, F) node features.
        edge_index: (2, E) edges between rows of `x`.
        ptr: (B+1,) int64, graph g owns the nodes ptr[g] … ptr[g+1]-1.
        edge_attr: (E, …) edge features, if there are any.
    """
    batch = torch.repeat_interleave(ptr.diff(), output_size=x.size(0))
    arrays = {"x": x, "edge_index": edge_index, "batch": batch, "ptr": ptr}
    if edge_attr is not None:
        arrays["edge_attr"] = edge_attr
    return Batch(**arrays)


def count_graphs(batch: Batch) -> int:
    """The number of graphs B in a batch."""
    return int(batch.ptr.numel()) - 1


def edge_pointers(batch: Batch) -> Tensor:
    """(B+1,) int64: graph g owns the edges out[g] … out[g+1]-1."""
    counts = torch.bincount(batch.batch[batch.edge_index[0]], minlength=count_graphs(batch))
    return pointers(counts)


def pointers(counts: Tensor) -> Tensor:
    """(B+1,) offsets of consecutive blocks with (B,) lengths."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def take_graphs(batch: Batch, index: Tensor, edge_ptr: Tensor | None = None) -> Batch:
    """The graphs `index`, (M,) int64, in that order; a graph may be taken more than once.

    `edge_ptr` is `edge_pointers(batch)`; pass it when cutting many batches out of one large one.
    """
    if edge_ptr is None:
        edge_ptr = edge_pointers(batch)
    sizes, edges = batch.ptr.diff()[index], edge_ptr.diff()[index]
    ptr, start = pointers(sizes), edge_ptr[index]
    edge_index = _taken(batch.edge_index, 1, start, edges)
    shift = torch.repeat_interleave(
        ptr[:-1] - batch.ptr[index], edges, output_size=edge_index.size(1)
    )
    return graph_batch(
        _taken(batch.x, 0, batch.ptr[index], sizes),
        edge_index + shift,  # stored in fewer bits, perhaps
        ptr,
        None if batch.edge_attr is None else _taken(batch.edge_attr, 0, start, edges),
    )


def _taken(array: Tensor, dim: int, start: Tensor, length: Tensor) -> Tensor:
    """start[0] … start[0]+length[0]-1, start[1] … of a dimension of `array`, joined."""
    if array.device.type == "cpu" and int(length.sum()) >= LONG * len(length):
        parts = zip(start.tolist(), length.tolist(), strict=True)
        return torch.cat([array.narrow(dim, at, count) for at, count in parts], dim)
    # index_select is several times faster than the same by square brackets.
    return array.index_select(dim, blocks(start, length))


def blocks(start: Tensor, length: Tensor) -> Tensor:
    """start[0], start[0]+1, … start[0]+length[0]-1, start[1], … as one vector."""
    offsets = pointers(length)
    total = int(offsets[-1])
    shift = torch.repeat_interleave(start - offsets[:-1], length, output_size=total)
    return shift + torch.arange(total, device=start.device)


# Here and not in a modality: graphs and molecules both have such views.
batching.size.register(Batch)(count_graphs)
batching.take.register(Batch)(take_graphs)
