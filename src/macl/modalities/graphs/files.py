"""Files of the user's own graphs: GraphML, GML, GEXF, JSON node-link and a CSV of edges.

networkx reads them, from an open file, so that it neither decompresses nor fetches anything; no
format holds code. What it raises for broken files is of many kinds, hence the broad `except`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from macl.core.errors import UserError
from macl.modalities.graphs.convert import from_networkx
from macl.modalities.graphs.dataset import GraphDataset, Layout, graph_dataset
from macl.modalities.graphs.sections import GraphDataConfig

SUFFIXES = (".graphml", ".gml", ".gexf", ".json", ".csv")
EDGE_COLUMNS = ("graph", "source", "target")
CLASS_COLUMN = "graph_label"
MAX_BYTES = 2**30
"""Size of a file; networkx takes some 20 times as much memory."""


def is_graph_file(path: Path) -> bool:
    """Whether `path` is a file in one of these formats, or a folder of such files, no TU set."""
    if path.is_dir():
        tu = (*path.glob("*.zip"), *path.rglob("*_A.txt"))
        return not tu and any(_files(path))
    return path.suffix.lower() in SUFFIXES


def read_graph_files(
    config: GraphDataConfig, path: Path, layout: Layout | None = None
) -> GraphDataset:
    """The graphs of a file, or of all files below a folder; `layout` as of `from_networkx`.

    In a folder, files in sub-folders have the class that the sub-folder names.
    """
    if path.suffix.lower() == ".csv" and not path.is_dir():
        return _guarded(path, partial(_read_edges, config))
    graphs, names, folders = [], [], []
    for file in _files(path) if path.is_dir() else [path]:
        own = _guarded(file, _read)
        name = file.relative_to(path).as_posix() if file != path else path.stem
        alone = len(own) == 1 and file != path
        graphs += own
        names += [name] if alone else [f"{name}/{i}" for i in range(len(own))]
        folders += [file.parent.name if file.parent != path else ""] * len(own)
    classes = folders if path.is_dir() and all(folders) else None
    return from_networkx(config, graphs, path.name, names=names, classes=classes, layout=layout)


def _files(folder: Path) -> Iterator[Path]:
    """The graph files in a folder and its sub-folders, in order of their names."""
    for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*")):
        if path.suffix.lower() in SUFFIXES[:-1] and path.is_file():
            yield path


def _guarded(path: Path, read: Any) -> Any:
    """`read(path)`, with every error as a `UserError` that names the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(
                f"{path}: is larger than {MAX_BYTES >> 20} MB. Split it, or convert it to the TU "
                "layout, which is read in a fraction of the memory."
            )
        return read(path)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except RecursionError as error:
        raise UserError(f"{path}: cannot be read: it is nested too deeply.") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"{path}: not a {path.suffix.lower()} file of graphs, or cut short ({reason})."
        ) from error


def _read(path: Path) -> list[Any]:
    """The networkx graphs in a file."""
    import networkx as nx
    from networkx.readwrite.graphml import GraphMLReader

    with path.open("rb") as file:
        match path.suffix.lower():
            case ".graphml":
                return list(GraphMLReader()(path=file))
            case ".gml":
                return [nx.read_gml(file, label="id")]
            case ".gexf":
                return [nx.read_gexf(file)]
        document = json.load(file)
    graphs = []
    for each in document if isinstance(document, list) else [document]:
        if not isinstance(each, dict) or not isinstance(each.get("nodes"), list):
            raise ValueError('a graph is an object with "nodes" and "edges" or "links"')
        key = "edges" if "edges" in each else "links"  # as in d3
        graphs.append(nx.node_link_graph(each, multigraph=False, edges=key))
    return graphs


def _read_edges(config: GraphDataConfig, path: Path) -> GraphDataset:
    """A table with one undirected edge a row: graph, source, target, and numeric attributes.

    A column graph_label holds the class of the row's graph.
    """
    table = pd.read_csv(path, dtype=dict.fromkeys((*EDGE_COLUMNS, CLASS_COLUMN), str))
    missing = [name for name in EDGE_COLUMNS if name not in table.columns]
    if missing:
        raise UserError(
            f"{path}: a CSV of edges has a header with the columns {', '.join(EDGE_COLUMNS)}; "
            f"there is no {', '.join(missing)}."
        )
    if table.empty or table[list(EDGE_COLUMNS)].isna().any(axis=None):
        raise UserError(f"{path}: has no edges, or rows without graph, source or target.")
    graph, graphs = pd.factorize(table["graph"])
    ends = pd.DataFrame(
        {"graph": np.tile(graph, 2), "node": pd.concat([table["source"], table["target"]])}
    )
    node = ends.groupby(["graph", "node"]).ngroup().to_numpy()  # nodes of a graph lie together
    sizes = ends.groupby("graph")["node"].nunique()
    edges = np.stack([node, np.roll(node, len(table))])  # source → target, and back
    others = table.drop(columns=[*EDGE_COLUMNS, CLASS_COLUMN], errors="ignore")
    numbers = others.select_dtypes(include=["number", "bool"]).to_numpy(dtype=np.float32)
    classes = None
    if CLASS_COLUMN in table.columns:
        by_graph = table.groupby(graph)[CLASS_COLUMN]
        if (by_graph.nunique(dropna=False) != 1).any() or table[CLASS_COLUMN].isna().any():
            raise UserError(f"{path}: {CLASS_COLUMN} must be the same in all rows of a graph.")
        classes = by_graph.first().tolist()
    return graph_dataset(
        config,
        path.stem,
        torch.tensor(sizes.to_numpy(dtype=np.int64)),
        torch.from_numpy(edges),
        torch.from_numpy(np.tile(numbers, (2, 1))) if numbers.size else None,
        classes=classes,
        names=[f"{path.stem}/{each}" for each in graphs],
    )
