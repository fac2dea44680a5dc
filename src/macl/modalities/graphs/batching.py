"""Batches of graphs as flat arrays: build one, cut some out.

In every batch here the nodes of a graph, and its edges, lie together and in the order of the
graphs, as PyG's own collation leaves them. That makes cutting and filtering index arithmetic.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from macl.core import batching

LONG = 100
"""Rows per graph above which copying graph by graph is faster than row by row."""


def graph_batch(
    x: Tensor, edge_index: Tensor, ptr: Tensor, edge_attr: Tensor | None = None
) -> Batch:
    """A PyG batch of B graphs: x (N, F), edges (2, E) between its rows, their features (E, …).

    Graph g owns the nodes ptr[g] … ptr[g+1]-1; ptr is (B+1,) int64.
    """
    batch = torch.repeat_interleave(ptr.diff(), output_size=x.size(0))
    return Batch(x=x, edge_index=edge_index, edge_attr=edge_attr, batch=batch, ptr=ptr)


def edge_pointers(batch: Batch) -> Tensor:
    """(B+1,) int64: graph g owns the edges out[g] … out[g+1]-1."""
    # Sources need not ascend within a graph, but those of earlier graphs are all smaller, and a
    # binary search for where a graph starts asks for no more.
    source = batch.edge_index[0].contiguous()
    return torch.searchsorted(source, batch.ptr.to(source.dtype))


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
    edge_index = take_blocks(batch.edge_index, 1, start, edges)
    shift = torch.repeat_interleave(
        ptr[:-1] - batch.ptr[index], edges, output_size=edge_index.size(1)
    )
    return graph_batch(
        take_blocks(batch.x, 0, batch.ptr[index], sizes),
        edge_index + shift,  # stored in fewer bits, perhaps
        ptr,
        None if batch.edge_attr is None else take_blocks(batch.edge_attr, 0, start, edges),
    )


def true_indices(mask: Tensor) -> Tensor:
    """Where `mask`, (N,) bool, holds: int64, ascending."""
    if mask.device.type == "cpu":
        # numpy's loop has no branch for the processor to mispredict: up to ten times as fast.
        return torch.from_numpy(mask.numpy().nonzero()[0])
    return mask.nonzero().squeeze(1)


def take_blocks(array: Tensor, dim: int, start: Tensor, length: Tensor) -> Tensor:
    """start[0] … start[0]+length[0]-1, start[1] … of dimension 0 or 1 of `array`, joined."""
    long = int(length.sum()) >= LONG * len(length) > 0
    if long and array.device.type == "cpu" and array.dtype != torch.bfloat16:
        # numpy, which has no bfloat16, makes ten slices while torch makes one.
        whole, before = array.numpy(), (slice(None),) * dim
        bounds = zip(start.tolist(), (start + length).tolist(), strict=True)
        parts = [whole[(*before, slice(first, last))] for first, last in bounds]
        return torch.from_numpy(np.concatenate(parts, axis=dim))
    return array.index_select(dim, blocks(start, length))


def blocks(start: Tensor, length: Tensor) -> Tensor:
    """start[0], start[0]+1, … start[0]+length[0]-1, start[1], … as one vector."""
    offsets = pointers(length)
    total = int(offsets[-1])
    shift = torch.repeat_interleave(start - offsets[:-1], length, output_size=total)
    return shift + torch.arange(total, device=start.device)


# Here and not in a modality: graphs and molecules both have such views.
batching.size.register(Batch)(attrgetter("num_graphs"))
batching.take.register(Batch)(take_graphs)
