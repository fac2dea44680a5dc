"""Graphs as small SVG drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from macl.core.progress import track
from macl.modalities.graphs.dataset import GraphDataset
from macl.modalities.protocols import Dataset, Items

SIDE = 120
"""Of a drawing, in SVG units."""

MOST_NODES = 80
"""A larger graph is illegible at this size and slow to lay out; its caption has its size."""

NODE_COLORS = ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#e76300", "#92dadd", "#a96b59")
"""By kind of node, where nodes have kinds: the first colors of the map's palette."""

EDGE_COLOR = "#8a919c"
"""A gray that shows on a light page and on a dark one."""


def graph_svg(kinds: Tensor, edge_index: Tensor) -> str | None:
    """A node-link drawing; None for a graph of more than `MOST_NODES` nodes.

    (n,) kinds decide the colors of nodes; (2, e) edges are given in one direction or both.
    """
    if len(kinds) > MOST_NODES:
        return None
    places = _layout(len(kinds), edge_index)
    lines = {tuple(sorted(pair)) for pair in edge_index.T.tolist() if pair[0] != pair[1]}
    edges = "".join(f"M{places[a]}L{places[b]}" for a, b in sorted(lines))
    radius = 9 if len(kinds) <= 20 else 5
    parts = [f'<path d="{edges}" stroke="{EDGE_COLOR}" stroke-width="1.5"/>']
    for kind in kinds.unique().tolist():
        # A line of no length with round ends is a dot: one path for all nodes of a kind.
        dots = "".join(f"M{places[i]}h0" for i in (kinds == kind).nonzero().flatten().tolist())
        color = NODE_COLORS[kind % len(NODE_COLORS)]
        parts.append(f'<path d="{dots}" stroke="{color}" stroke-width="{radius}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" fill="none" '
        f'stroke-linecap="round">{"".join(parts)}</svg>'
    )


def _layout(count: int, edge_index: Tensor) -> list[str]:
    """Places of the nodes, "x y" each, by Kamada and Kawai; parts that are apart stay apart."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edge_index.T.tolist())
    # Their stress needs distances; parts that no path joins are put at a moderate one.
    apart = 1 + count**0.5
    lengths = nx.all_pairs_shortest_path_length(graph)
    distances = {node: dict.fromkeys(graph, apart) | near for node, near in lengths}
    middle = SIDE / 2
    places = nx.kamada_kawai_layout(graph, distances, scale=middle - 10, center=(middle, middle))
    return [f"{x:.0f} {y:.0f}" for x, y in (places[node] for node in range(count))]


def graph_items(dataset: Dataset, indices: Sequence[int]) -> Items:
    """Drawings of the graphs at `indices`; captions with their numbers of nodes and edges."""
    drawings, captions = [], []
    labeled = cast(GraphDataset, dataset).layout.ranges is not None
    for index in track(indices, "drawing graphs", len(indices)):
        graph = dataset.collate([index])
        kinds = graph.x.argmax(dim=1) if labeled else torch.zeros(len(graph.x), dtype=torch.long)
        drawings.append(graph_svg(kinds, graph.edge_index))
        size = f"{len(graph.x)} nodes, {graph.edge_index.shape[1] // 2} edges"
        captions.append(f"{dataset.names[index]}: {size}")
    return Items(captions, drawings=drawings)
