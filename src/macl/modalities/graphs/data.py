"""Graph data sets: any TU set, from disk or downloaded, and the embedded graph atlas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.utils import degree

from macl.core.errors import UserError
from macl.core.files import cache_folder
from macl.core.section import Section
from macl.modalities.graphs.batching import (
    count_graphs,
    edge_pointers,
    graph_batch,
    pointers,
    take_graphs,
)
from macl.modalities.graphs.tu import TUGraphs, label_ranges, one_hot, read_tu

ATLAS = "atlas"


class GraphDataConfig(Section):
    """Which graphs. Node features are one-hot node labels where there are some, else `attributes`.

    TU sets have no split: training sees every graph, never its class, and evaluation
    cross-validates over the same graphs.
    """

    name: str | None = None
    """A TU set ("MUTAG") or "atlas"; None: the only set at `path`, or the atlas without a path."""
    path: Path | None = None
    """NAME.zip, a folder in the TU layout, or a folder that holds either."""
    download: bool = False
    """Fetch the set from the TU collection when there is no `path`."""
    cache: Path | None = None
    """Where downloads are kept; by default the folder macl/tu in the user's cache folder."""
    attributes: bool | None = None
    """Take continuous node attributes as features, beside the labels where there are some; unset:
    only where there are none. (PROTEINS has both, and GraphCL takes the labels.)"""
    unlabelled: Literal["constant", "degree"] = "constant"
    """Features of nodes that have neither: a constant 1, or the one-hot degree."""
    max_degree: int = Field(default=64, ge=1)
    """Larger degrees share the last column of the one-hot degree, which bounds its width."""


class GraphDataset:
    """Graphs in one flat batch; item i is the number i, and `collate` cuts numbers out at once.

    Passing numbers about keeps the work per batch to a few indexing operations, where a list of
    separate graphs would cost a Python loop.
    """

    def __init__(
        self,
        name: str,
        graphs: Batch,
        labels: Tensor | None,
        ranges: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        self.graphs = graphs
        self.labels = labels
        self.names: Sequence[str] = [f"{name}/{i}" for i in range(count_graphs(graphs))]
        self.num_features = int(graphs.x.size(1))
        self.label_ranges = ranges
        """What the one-hot columns stand for; None when the nodes have no labels."""
        self._edge_ptr = edge_pointers(graphs)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return range(len(self))[index]

    def collate(self, samples: list[int]) -> Batch:
        """The graphs with these numbers, as one PyG batch."""
        return take_graphs(self.graphs, torch.tensor(samples, dtype=torch.long), self._edge_ptr)


def load_graphs(config: GraphDataConfig) -> GraphDataset:
    """The set that `config` names."""
    if config.path is None:
        if config.name in (None, ATLAS):
            return atlas(config)
        return _featurise(read_tu(_downloaded(config), config.name), config)
    if config.name == ATLAS:
        raise UserError(
            f"data.path={config.path}: the atlas is embedded. Drop the path or the name."
        )
    return _featurise(read_tu(config.path, config.name), config)


def open_graphs(config: GraphDataConfig, path: Path) -> GraphDataset:
    """The only set at `path`, its node labels laid out in columns as in the training set."""
    raw = read_tu(path)
    if raw.node_labels is None:
        return _featurise(raw, config)
    try:
        trained = load_graphs(config)
    except UserError as error:
        raise UserError(
            f"{path}: what the columns of its node labels mean is read from the training set, and "
            f"that cannot be read: {error}"
        ) from error
    return _featurise(raw, config, trained)


def atlas(config: GraphDataConfig) -> GraphDataset:
    """The 1252 graphs of one to seven nodes in networkx's atlas.

    Classes by number of triangles: at most 2, 3 to 5, more than 5 (482, 380 and 390 graphs), which
    no single count of nodes or edges tells apart.
    """
    import networkx as nx

    graphs = nx.graph_atlas_g()[1:]  # the first has no nodes
    ptr = pointers(torch.tensor([len(graph) for graph in graphs]))
    edges = [
        (start + u, start + v)
        for start, graph in zip(ptr.tolist(), graphs, strict=False)
        for u, v in graph.to_directed().edges
    ]
    triangles = torch.tensor([sum(nx.triangles(graph).values()) // 3 for graph in graphs])
    return _featurise(
        TUGraphs(
            name=ATLAS,
            ptr=ptr,
            edge_index=torch.tensor(edges).T.contiguous(),
            node_labels=None,
            node_attributes=None,
            edge_attr=None,
            labels=torch.bucketize(triangles, torch.tensor([2, 5])),
        ),
        config,
    )


def _featurise(
    raw: TUGraphs, config: GraphDataConfig, like: GraphDataset | None = None
) -> GraphDataset:
    """Give the nodes their features; `like` decides what the columns mean when it is given."""
    ranges = (
        None
        if raw.node_labels is None
        else label_ranges(raw.node_labels, f"{raw.name}_node_labels.txt")
    )
    if like is not None:
        if ranges is not None and like.label_ranges is not None:
            _check_labels(raw.name, ranges, like.label_ranges)
        ranges = like.label_ranges
    num_nodes = int(raw.ptr[-1])
    known: list[Tensor] = []
    if raw.node_labels is not None and ranges is not None:
        known.append(one_hot(raw.node_labels, ranges))
    if ranges is None if config.attributes is None else config.attributes:
        known += _attributes(raw, needed=bool(config.attributes))
    if known:
        x = torch.cat(known, dim=1)
    elif config.unlabelled == "constant":
        x = torch.ones(num_nodes, 1)
    else:
        degrees = degree(raw.edge_index[0], num_nodes, torch.long).clamp(max=config.max_degree)
        x = torch.nn.functional.one_hot(degrees, config.max_degree + 1).float()
    graphs = graph_batch(x, raw.edge_index, raw.ptr, raw.edge_attr)
    return GraphDataset(raw.name, graphs, raw.labels, ranges)


def _attributes(raw: TUGraphs, needed: bool) -> list[Tensor]:
    """The continuous attributes of the nodes, or nothing where a set may do without."""
    file = f"{raw.name}_node_attributes.txt"
    if raw.node_attributes is None:
        if needed:
            raise UserError(f"data.attributes=true: {raw.name} has no {file}.")
        return []
    if not bool(raw.node_attributes.isfinite().all()):
        raise UserError(f"{file}: has numbers that are missing or not finite.")
    return [raw.node_attributes]


def _check_labels(
    name: str, found: tuple[tuple[int, int], ...], known: tuple[tuple[int, int], ...]
) -> None:
    """Raise unless every label found is one that training knew, column by column."""
    if len(found) != len(known):
        raise UserError(
            f"{name}_node_labels.txt: has {len(found)} columns; training had {len(known)}."
        )
    for (low, width), (known_low, known_width) in zip(found, known, strict=True):
        if low < known_low or low + width > known_low + known_width:
            raise UserError(
                f"{name}_node_labels.txt: labels {low} to {low + width - 1} go beyond those of "
                f"the training set, {known_low} to {known_low + known_width - 1}."
            )


def _downloaded(config: GraphDataConfig) -> Path:
    """NAME.zip in the cache, fetched first if that is allowed."""
    name = str(config.name)
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"data.name={name!r}: not a name of the TU collection.")
    archive = (config.cache or cache_folder("tu")) / f"{name}.zip"
    if archive.exists():
        return archive
    if not config.download:
        raise UserError(
            f"data.name={name!r}: give --data (data.path) a folder with {name}.zip or "
            f"{name}/{name}_A.txt, or data.download=true to fetch it from the TU collection."
        )
    from torch_geometric.datasets import TUDataset

    url = f"{TUDataset.url}/{name}.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(archive), progress=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{url}: could not be downloaded ({error}).") from error
    return archive
