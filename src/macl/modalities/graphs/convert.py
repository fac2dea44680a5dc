"""Graphs of networkx and PyG as a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from macl.core.errors import UserError, nearest
from macl.modalities.graphs.batching import pointers
from macl.modalities.graphs.dataset import GraphDataset, Layout, graph_dataset, one_hot
from macl.modalities.graphs.sections import GraphDataConfig


def from_networkx(
    config: GraphDataConfig,
    graphs: Sequence[Any],
    name: str = "graphs",
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    layout: Layout | None = None,
) -> GraphDataset:
    """networkx graphs; an undirected edge becomes two.

    Node features are the numeric node attributes that all nodes have, and `config.node_label` as
    one-hot columns. Numeric edge attributes that all edges have are kept for encoders that use
    them.

    `name` is what messages call the set, `names` what the graphs are called. The class of a graph
    is that in `classes`, or its attribute `config.graph_label` where all have it. `layout` is that
    of the training set.
    """
    layout, key = layout or Layout(), config.graph_label
    sizes = _sizes([len(graph) for graph in graphs], name)
    nodes: list[Mapping[Any, Any]] = [data for graph in graphs for _, data in graph.nodes.items()]
    edges: list[tuple[int, int]] = []
    edge_values: list[Mapping[Any, Any]] = []
    for graph, start in zip(graphs, pointers(sizes).tolist(), strict=False):
        place = {node: start + i for i, node in enumerate(graph)}
        for source, target, data in graph.to_directed(as_view=True).edges(data=True):
            edges.append((place[source], place[target]))
            edge_values.append(data)
    if classes is None and all(key in graph.graph for graph in graphs):
        classes = [graph.graph[key] for graph in graphs]
    numeric, columns = _numeric_keys(nodes), layout.attributes
    if columns is None:
        columns = tuple(column for column in numeric if column != config.node_label)
    for column in columns:
        if column not in numeric:
            raise UserError(
                f"{name}: a node has no numeric attribute {column!r}, which the training set has."
            )
    vocabulary, ranges, labels = None, None, None
    if config.node_label is not None:
        vocabulary, numbers = _categories(nodes, config.node_label, layout.labels, name)
        ranges = ((0, len(vocabulary)),)
        labels = one_hot(numbers, ranges, f"{name} node labels")
    return graph_dataset(
        config,
        name,
        sizes,
        torch.tensor(edges, dtype=torch.long).view(-1, 2).T,
        _table(edge_values, _numeric_keys(edge_values)),
        labels=labels,
        attributes=_table(nodes, columns),
        layout=Layout(columns, vocabulary, ranges),
        classes=classes,
        names=names or [f"{name}/{i}" for i in range(len(graphs))],
    )


def from_pyg(config: GraphDataConfig, graphs: Sequence[Data], name: str = "graphs") -> GraphDataset:
    """PyG graphs: x are the node features, y, one integer each, the classes."""
    sizes = _sizes([int(graph.num_nodes or 0) for graph in graphs], name)
    with_x = {graph.x is not None and tuple(graph.x.shape[1:]) for graph in graphs}
    if len(with_x) > 1:
        raise UserError(f"{name}: all graphs must have an x of the same width, or none.")
    none = torch.empty(2, 0, dtype=torch.long)
    edges = [
        (none if graph.edge_index is None else graph.edge_index) + start
        for graph, start in zip(graphs, pointers(sizes).tolist(), strict=False)
    ]
    has_classes = all(isinstance(graph.y, Tensor) and graph.y.numel() == 1 for graph in graphs)
    values = [graph.edge_attr for graph in graphs]
    return graph_dataset(
        config,
        name,
        sizes,
        torch.cat(edges, 1),
        None if any(value is None for value in values) else torch.cat(values),
        attributes=None if False in with_x else torch.cat([g.x for g in graphs]).float(),
        classes=[graph.y.item() for graph in graphs] if has_classes else None,
        names=[f"{name}/{i}" for i in range(len(graphs))],
    )


def _sizes(counts: list[int], name: str) -> Tensor:
    if not counts:
        raise UserError(f"{name}: holds no graphs.")
    if 0 in counts:
        raise UserError(f"{name}: graph {counts.index(0)} has no nodes.")
    return torch.tensor(counts)


def _numeric_keys(rows: Sequence[Mapping[Any, Any]]) -> tuple[str, ...]:
    """The keys with a number, which bool and numpy's numbers are, in every row; sorted."""
    named = [key for key in rows[0] if isinstance(key, str)] if rows else []
    numeric = [key for key in named if all(isinstance(row.get(key), Real) for row in rows)]
    return tuple(sorted(numeric))


def _table(rows: Sequence[Mapping[Any, Any]], columns: Sequence[str]) -> Tensor | None:
    """(rows, columns) float32; None without columns."""
    values = [[float(row[column]) for column in columns] for row in rows]
    return torch.tensor(values, dtype=torch.float32) if columns else None


def _categories(
    nodes: Sequence[Mapping[Any, Any]], key: str, known: tuple[str, ...] | None, name: str
) -> tuple[tuple[str, ...], Tensor]:
    """The values of a node attribute and (N, 1) the place of each node's value among them."""
    if any(key not in node for node in nodes):
        there = sorted({str(k) for node in nodes for k in node})
        raise UserError(
            f"{name}: data.node_label={key}: not every node has that attribute."
            f"{nearest(key, there) if there else ' Nodes have no attributes.'}"
        )
    values = [str(node[key]) for node in nodes]
    names = tuple(sorted(set(values))) if known is None else known
    for value in set(values).difference(names):
        raise UserError(f"{name}: node label {value!r} does not occur in the training set.")
    place = {value: i for i, value in enumerate(names)}
    return names, torch.tensor([[place[value]] for value in values])
