"""Graph data sets: TU sets, the user's own graphs, and the embedded graph atlas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import degree

from macl.core.errors import UserError
from macl.core.files import cache_folder
from macl.modalities.graphs.batching import edge_pointers, graph_batch, take_graphs
from macl.modalities.graphs.convert import from_networkx, from_pyg
from macl.modalities.graphs.files import is_graph_file, read_graph_files
from macl.modalities.graphs.sections import GraphDataConfig
from macl.modalities.graphs.tu import Layout, TUGraphs, one_hot, read_tu
from macl.modalities.protocols import Dataset
from macl.modalities.splits import random_subset

ATLAS = "atlas"


class GraphDataset(Dataset):
    """Graphs in one flat batch; item i is the number i, and `collate` cuts numbers out at once.

    Passing numbers about keeps the work per batch to a few indexing operations, where a list of
    separate graphs would cost a Python loop.
    """

    layout = Layout()

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

    def collate(self, samples: list[int]) -> Batch:
        """The graphs with these numbers, as one PyG batch."""
        return take_graphs(self.graphs, torch.tensor(samples, dtype=torch.long), self._edge_ptr)


def load_graphs(config: GraphDataConfig, split: str = "train") -> GraphDataset:
    """The set that `config` names, at most `config.limit` graphs of it, whatever the split."""
    return _featurize(_read(config), config, config.limit)


def open_graphs(config: GraphDataConfig, path: Path) -> GraphDataset:
    """The only set at `path`, its node features laid out in columns as in the training set."""
    if is_graph_file(path):
        own = config.path is not None and is_graph_file(config.path)
        layout = _training_layout(config, path) if own else None
        raw = read_graph_files(path, **_keys(config), layout=layout)
    else:
        raw = read_tu(path)
        if raw.layout.ranges is not None:
            layout = _training_layout(config, path)
            _check_labels(raw, layout)
            raw = replace(raw, layout=layout)
    return _featurize(raw, config, config.limit)


def graphs_of(config: GraphDataConfig, items: Sequence[Any]) -> GraphDataset:
    """A data set of networkx or PyG graphs; see `from_networkx` and `from_pyg`."""
    if all(isinstance(item, Data) for item in items):
        return _featurize(from_pyg(items), config)
    if all(hasattr(item, "nodes") and hasattr(item, "is_directed") for item in items):
        return _featurize(from_networkx(items, **_keys(config)), config)
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise UserError(f"graphs are networkx graphs or PyG's Data, all of one kind; got {kinds}.")


def _read(config: GraphDataConfig) -> TUGraphs:
    if config.path is None:
        if config.name in (None, ATLAS):
            return _atlas()
        return read_tu(_downloaded(config), config.name)
    if is_graph_file(config.path):
        return read_graph_files(config.path, **_keys(config))
    if config.name == ATLAS:
        raise UserError(
            f"data.path={config.path}: the atlas is embedded. Drop the path or the name."
        )
    return read_tu(config.path, config.name)


def _atlas() -> TUGraphs:
    """The 1252 graphs of one to seven nodes in networkx's atlas.

    Classes by number of triangles: at most 2, 3 to 5, more than 5 (482, 380 and 390 graphs), which
    no single count of nodes or edges separates.
    """
    import networkx as nx

    graphs = nx.graph_atlas_g()[1:]  # the first has no nodes
    triangles = torch.tensor([sum(nx.triangles(graph).values()) // 3 for graph in graphs])
    labels = torch.bucketize(triangles, torch.tensor([2, 5]))
    return replace(from_networkx(graphs, ATLAS), labels=labels)


def _keys(config: GraphDataConfig) -> dict[str, Any]:
    return {"node_label": config.node_label, "graph_label": config.graph_label}


def _training_layout(config: GraphDataConfig, path: Path) -> Layout:
    """How node features are laid out in the training set, and so in what is at `path`."""
    try:
        return _read(config).layout
    except UserError as error:
        raise UserError(
            f"{path}: what the columns of its node features mean is read from the training set, "
            f"and that cannot be read: {error} Set data.path to where it is now."
        ) from error


def _featurize(raw: TUGraphs, config: GraphDataConfig, limit: int | None = None) -> GraphDataset:
    """At most `limit` of the graphs, whose nodes get their features."""
    num_nodes, ranges = int(raw.ptr[-1]), raw.layout.ranges
    known: list[Tensor] = []
    if raw.node_labels is not None and ranges is not None:
        known.append(one_hot(raw.node_labels, ranges, _source(raw, "node_labels")))
    file = _source(raw, "node_attributes")
    if config.attributes and raw.node_attributes is None:
        raise UserError(f"data.attributes=true: {raw.name} has no {file}.")
    wanted = ranges is None if config.attributes is None else config.attributes
    if wanted and raw.node_attributes is not None:
        if not raw.node_attributes.isfinite().all():
            raise UserError(f"{file}: has numbers that are missing or not finite.")
        known.append(raw.node_attributes)
    if known:
        x = torch.cat(known, dim=1)
    elif config.unlabeled == "constant":
        x = torch.ones(num_nodes, 1)
    else:
        degrees = degree(raw.edge_index[0], num_nodes, torch.long).clamp(max=config.max_degree)
        x = torch.nn.functional.one_hot(degrees, config.max_degree + 1).float()
    graphs = graph_batch(x, raw.edge_index, raw.ptr, raw.edge_attr)
    names = raw.names or [f"{raw.name}/{i}" for i in range(graphs.num_graphs)]
    dataset = GraphDataset(graphs, names)
    dataset.labels, dataset.classes, dataset.layout = raw.labels, raw.class_names, raw.layout
    chosen = random_subset(len(names), limit)
    return dataset if len(chosen) == len(names) else dataset.select(chosen)


def _source(raw: TUGraphs, part: str) -> str:
    """Where a part of the graphs comes from: a file of a TU set, or the graphs of a user."""
    return f"{raw.name} {part.replace('_', ' ')}" if raw.names else f"{raw.name}_{part}.txt"


def _check_labels(raw: TUGraphs, trained: Layout) -> None:
    """Raise unless every label is one that training knew, column by column."""
    if raw.layout.ranges is None or trained.ranges is None:
        return
    file, ranges, known = _source(raw, "node_labels"), raw.layout.ranges, trained.ranges
    if len(ranges) != len(known):
        raise UserError(f"{file}: has {len(ranges)} columns; training had {len(known)}.")
    for (low, width), (known_low, known_width) in zip(ranges, known, strict=True):
        if low < known_low or low + width > known_low + known_width:
            raise UserError(
                f"{file}: labels {low} to {low + width - 1} go beyond those of "
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
            f"data.name={name!r}: give `data=` (data.path) a folder with {name}.zip or "
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
