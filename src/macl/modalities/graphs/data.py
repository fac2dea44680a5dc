"""Which graphs: TU sets, the user's own graphs, and the embedded graph atlas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from macl.core.errors import UserError
from macl.core.files import cache_folder
from macl.modalities.graphs.convert import from_networkx, from_pyg
from macl.modalities.graphs.dataset import GraphDataset, Layout
from macl.modalities.graphs.files import is_graph_file, read_graph_files
from macl.modalities.graphs.sections import GraphDataConfig
from macl.modalities.graphs.tu import read_tu

ATLAS = "atlas"


def load_graphs(config: GraphDataConfig, split: str = "train") -> GraphDataset:
    """The set that `config` names, at most `config.limit` graphs of it, whatever the split."""
    return _read(config).limited(config.limit)


def open_graphs(config: GraphDataConfig, path: Path) -> GraphDataset:
    """The only set at `path`, its node features laid out in columns as in the training set."""
    training_layout = partial(_training_layout, config, path)
    if is_graph_file(path):
        own = config.path is not None and is_graph_file(config.path)
        opened = read_graph_files(config, path, training_layout() if own else None)
    else:
        opened = read_tu(config, path, training_layout=training_layout)
    return opened.limited(config.limit)


def graphs_of(config: GraphDataConfig, items: Sequence[Any]) -> GraphDataset:
    """A data set of networkx or PyG graphs; see `from_networkx` and `from_pyg`."""
    if all(isinstance(item, Data) for item in items):
        return from_pyg(config, items)
    if all(hasattr(item, "nodes") and hasattr(item, "is_directed") for item in items):
        return from_networkx(config, items)
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise UserError(f"graphs are networkx graphs or PyG's Data, all of one kind; got {kinds}.")


def _read(config: GraphDataConfig) -> GraphDataset:
    if config.path is None:
        if config.name in (None, ATLAS):
            return _atlas(config)
        return read_tu(config, _downloaded(config), config.name)
    if is_graph_file(config.path):
        return read_graph_files(config, config.path)
    if config.name == ATLAS:
        raise UserError(
            f"data.path={config.path}: the atlas is embedded. Drop the path or the name."
        )
    return read_tu(config, config.path, config.name)


def _atlas(config: GraphDataConfig) -> GraphDataset:
    """The 1252 graphs of one to seven nodes in networkx's atlas.

    Classes by number of triangles: at most 2, 3 to 5, more than 5 (482, 380 and 390 graphs), which
    no single count of nodes or edges separates.
    """
    import networkx as nx

    graphs = nx.graph_atlas_g()[1:]  # the first has no nodes
    triangles = torch.tensor([sum(nx.triangles(graph).values()) // 3 for graph in graphs])
    dataset = from_networkx(config, graphs, ATLAS)
    dataset.labels = torch.bucketize(triangles, torch.tensor([2, 5]))
    return dataset


def _training_layout(config: GraphDataConfig, path: Path) -> Layout:
    """How node features are laid out in the training set, and so in what is at `path`."""
    try:
        return _read(config).layout
    except UserError as error:
        raise UserError(
            f"{path}: what the columns of its node features mean is read from the training set, "
            f"and that cannot be read: {error} Set data.path to where it is now."
        ) from error


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
