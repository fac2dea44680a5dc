"""A data set of graphs in flat arrays, and how it is made of edges and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.utils import coalesce, degree, remove_self_loops

from macl.core.errors import UserError
from macl.modalities.graphs.batching import edge_pointers, graph_batch, pointers, take_graphs
from macl.modalities.graphs.sections import GraphDataConfig
from macl.modalities.protocols import Dataset
from macl.modalities.splits import number_classes, random_subset

Ranges = tuple[tuple[int, int], ...]
"""Of each column of labels, the smallest and the number of values."""
MOST_LABELS = 2**16
"""Columns of one-hot labels; the TU collection's largest set has 41,325."""
MOST_CELLS = 2**31
"""Numbers in all of them: 8 GB."""


@dataclass(frozen=True)
class Layout:
    """What the feature columns of nodes mean; given, others' graphs are laid out the same way."""

    attributes: tuple[str, ...] | None = None
    """Numeric node attributes, in order; None: all that every node has."""
    labels: tuple[str, ...] | None = None
    """The values of the node label, in order; None: those that occur."""
    ranges: Ranges | None = None
    """What the one-hot columns of node labels stand for; None: nodes have no labels."""


_UNKNOWN = Layout()


class GraphDataset(Dataset):
    """Graphs in one flat batch; item i is the number i, and `collate` cuts numbers out at once.

    Passing numbers about keeps the work per batch to a few indexing operations, where a list of
    separate graphs would cost a Python loop.
    """

    layout = _UNKNOWN

    def __init__(self, graphs: Batch, names: Sequence[str]) -> None:
        self.graphs, self.names = graphs, list(names)
        self.num_features = int(graphs.x.size(1))
        self._edge_ptr = edge_pointers(graphs)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return range(len(self))[index]

    def select(self, indices: Tensor) -> GraphDataset:
        """The graphs at `indices`, in that order."""
        names = [self.names[i] for i in indices.tolist()]
        chosen = GraphDataset(take_graphs(self.graphs, indices, self._edge_ptr), names)
        chosen.labels = None if self.labels is None else self.labels[indices]
        chosen.classes, chosen.layout = self.classes, self.layout
        return chosen

    def limited(self, limit: int | None) -> GraphDataset:
        """At most `limit` of the graphs."""
        chosen = random_subset(len(self), limit)
        return self if len(chosen) == len(self) else self.select(chosen)

    def collate(self, samples: list[int]) -> Batch:
        """The graphs with these numbers, as one PyG batch."""
        return take_graphs(self.graphs, torch.tensor(samples, dtype=torch.long), self._edge_ptr)


def graph_dataset(
    config: GraphDataConfig,
    name: str,
    sizes: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    *,
    repeated: str = "mean",
    labels: Tensor | None = None,
    attributes: Tensor | None = None,
    layout: Layout = _UNKNOWN,
    classes: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
) -> GraphDataset:
    """B graphs with N nodes, without loops and repeated edges, and the features of `config`.

    Args:
        config: which node features to take.
        name: what messages call the set.
        sizes: (B,) nodes of each graph; they lie together.
        edge_index: (2, E) directed edges.
        edge_attr: (E, D) features; those of repeated edges are reduced by `repeated`.
        labels: (N, L) node labels, one-hot.
        attributes: (N, A) float32.
        layout: what the columns of both stand for.
        classes: (B,) the class of each graph.
        names: what the graphs are called; None: they are of a TU set, and have numbers.
    """
    nodes = int(sizes.sum())
    edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)
    values = None if edge_attr is None else edge_attr.float()
    edge_index, edge_attr = coalesce(edge_index, values, nodes, repeated)
    known = [] if labels is None else [labels]
    source = f"{name}_node_attributes.txt" if names is None else f"{name} node attributes"
    if config.attributes and attributes is None:
        raise UserError(f"data.attributes=true: {name} has no {source}.")
    wanted = labels is None if config.attributes is None else config.attributes
    if wanted and attributes is not None:
        if not attributes.isfinite().all():
            raise UserError(f"{source}: has numbers that are missing or not finite.")
        known.append(attributes)
    if known:
        x = torch.cat(known, dim=1)
    elif config.unlabeled == "constant":
        x = torch.ones(nodes, 1)
    else:
        degrees = degree(edge_index[0], nodes, torch.long).clamp(max=config.max_degree)
        x = torch.nn.functional.one_hot(degrees, config.max_degree + 1).float()
    graphs = graph_batch(x, edge_index, pointers(sizes), edge_attr)
    dataset = GraphDataset(graphs, names or [f"{name}/{i}" for i in range(len(sizes))])
    dataset.layout = layout
    if classes is not None:
        dataset.labels, dataset.classes = number_classes([str(value) for value in classes])
    return dataset


def one_hot(labels: Tensor, ranges: Ranges, source: str) -> Tensor:
    """(N, L) integer labels of `source` to (N, Σ width) floats, column by column.

    `UserError` where they would not fit in memory.
    """
    total = sum(width for _, width in ranges)
    if total > MOST_LABELS or total * len(labels) > MOST_CELLS:
        first = min(low for low, _ in ranges)
        last = max(low + width - 1 for low, width in ranges)
        raise UserError(
            f"{source}: labels from {first} to {last} would make {total:,} one-hot columns "
            f"for {len(labels):,} rows, too many to hold. Number the labels 0, 1, 2, … in order."
        )
    lows, widths = torch.tensor(ranges).unbind(1)
    return torch.zeros(len(labels), total).scatter_(1, labels - lows + pointers(widths)[:-1], 1.0)
