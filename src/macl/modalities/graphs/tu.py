"""Reader of the TU layout: NAME_A.txt, NAME_graph_indicator.txt and so on, in a folder or a zip.

A zip is read in place, so nothing is ever unpacked or written. Every inconsistency between the
files is reported with the file's name, because a truncated file is the usual mistake. PyG's own
reader unpacks the archive, caches a pickle, and does not compare the files with each other.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.utils import coalesce, remove_self_loops

from macl.core.errors import UserError, nearest
from macl.core.limits import refuse_bomb
from macl.modalities.graphs.batching import pointers
from macl.modalities.splits import number_classes

Folder = Path | zipfile.Path
Ranges = tuple[tuple[int, int], ...]
"""Of each column of labels, the smallest and the number of values."""
_ADJACENCY = "_A.txt"
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


@dataclass(frozen=True)
class TUGraphs:
    """B graphs with N nodes and E directed edges, as flat arrays; no loops, no repeated edges."""

    name: str
    ptr: Tensor
    """(B+1,) node offsets."""
    edge_index: Tensor
    """(2, E)."""
    edge_attr: Tensor | None = None
    """(E, D) features, or one-hot labels."""
    node_labels: Tensor | None = None
    """(N, L) raw labels; `layout.ranges` is theirs."""
    node_attributes: Tensor | None = None
    """(N, A) float32."""
    labels: Tensor | None = None
    """(B,) classes 0 … C-1."""
    layout: Layout = Layout()
    """What the columns of `node_attributes` and the node labels stand for, where known."""
    class_names: Sequence[str] = ()
    """What the classes are called, where known."""
    names: Sequence[str] | None = None
    """What the graphs are called; None: by their number."""

    @classmethod
    def of(
        cls,
        name: str,
        sizes: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        repeated: str = "mean",
        classes: Sequence[Any] | None = None,
        **parts: Any,
    ) -> TUGraphs:
        """B graphs of (B,) `sizes` with (2, E) edges; loops and repeated edges are left out.

        Features of repeated edges are reduced by `repeated`; `classes` name the class of each
        graph; `parts` are the other fields.
        """
        if classes is not None:
            parts["labels"], parts["class_names"] = number_classes([str(c) for c in classes])
        nodes = int(sizes.sum())
        edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)
        if edge_attr is None:
            edge_index = coalesce(edge_index, num_nodes=nodes)
        else:
            edge_index, edge_attr = coalesce(edge_index, edge_attr.float(), nodes, repeated)
        return cls(name, pointers(sizes), edge_index, edge_attr, **parts)


def read_tu(path: Path, name: str | None = None) -> TUGraphs:
    """Read the set `name`, or the only one there is, from `path`.

    `path` is NAME.zip, a folder with NAME.zip, a folder with NAME_A.txt, or a folder that has it in
    NAME/ or NAME/raw/.
    """
    try:
        folder, name = _locate(path, name)
        return _read(folder, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(
            f"{path}: the zip archive cannot be read ({error}). Fetch it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error


def one_hot(labels: Tensor, ranges: Ranges, file: str) -> Tensor:
    """(N, L) integer labels of `file` to (N, Σ width) floats, column by column.

    `UserError` where they would not fit in memory.
    """
    total = sum(width for _, width in ranges)
    if total > MOST_LABELS or total * len(labels) > MOST_CELLS:
        first = min(low for low, _ in ranges)
        last = max(low + width - 1 for low, width in ranges)
        raise UserError(
            f"{file}: labels from {first} to {last} would make {total:,} one-hot columns "
            f"for {len(labels):,} rows, too many to hold. Number the labels 0, 1, 2, … in order."
        )
    lows, widths = torch.tensor(ranges).unbind(1)
    return torch.zeros(len(labels), total).scatter_(1, labels - lows + pointers(widths)[:-1], 1.0)


def label_ranges(labels: Tensor) -> Ranges:
    """The ranges of the columns of (N, L) labels."""
    lows, highs = labels.amin(0).tolist(), labels.amax(0).tolist()
    return tuple((low, high - low + 1) for low, high in zip(lows, highs, strict=True))


def _locate(path: Path, name: str | None) -> tuple[Folder, str]:
    """The folder that holds NAME_A.txt, and NAME."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder. Give a TU folder or NAME.zip.")
    if path.is_dir() and name is not None and (path / f"{name}.zip").is_file():
        path = path / f"{name}.zip"
    if not path.is_dir():
        if path.suffix.lower() != ".zip" and not zipfile.is_zipfile(path):
            raise UserError(
                f"{path}: graphs come as a folder in the TU layout, as NAME.zip, or in a file that "
                "ends in .graphml, .gml, .gexf, .json or .csv."
            )
        refuse_bomb(path)
    root: Folder = path if path.is_dir() else zipfile.Path(path)
    sets = dict(_sets(root))
    if not sets and path.is_dir():
        sets = {archive.stem: archive for archive in path.glob("*.zip")}
        if name is None and len(sets) == 1:
            return _locate(path / f"{next(iter(sets))}.zip", None)
    if not sets:
        raise UserError(f"{path}: holds no graphs in the TU layout (no NAME{_ADJACENCY}).")
    if name is None and len(sets) > 1:
        listed = ", ".join(sorted(sets))
        raise UserError(f"{path}: holds several sets; set data.name to one of {listed}.")
    name = name or next(iter(sets))
    if name not in sets:
        raise UserError(f"{path}: holds no set {name!r}.{nearest(name, sets)}")
    return sets[name], name


def _sets(root: Folder) -> Iterator[tuple[str, Folder]]:
    """Every TU set in `root`, in a folder of it, or in that one's `raw` folder."""
    below = [child for child in root.iterdir() if child.is_dir()]
    for folder in (root, *below, *(child / "raw" for child in below)):
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(_ADJACENCY):
                    yield file.name.removesuffix(_ADJACENCY), folder


def _read(folder: Folder, name: str) -> TUGraphs:
    indicator = _numbers(folder, name, "graph_indicator", columns=1)[:, 0]
    if indicator[0] != 1 or not np.isin(np.diff(indicator), (0, 1)).all():
        where = f"{name}_graph_indicator.txt"
        raise UserError(f"{where}: graphs must be numbered 1, 2, 3, … without gaps, in order.")
    num_nodes, num_graphs = len(indicator), int(indicator[-1])

    edges = _numbers(folder, name, "A", columns=2)
    if edges.min() < 1 or edges.max() > num_nodes:
        raise UserError(
            f"{name}_A.txt: names node {edges.min() if edges.min() < 1 else edges.max()}, but "
            f"{name}_graph_indicator.txt has {num_nodes} nodes. One of the two is truncated."
        )
    edges -= 1
    crossing = indicator[edges[:, 0]] != indicator[edges[:, 1]]
    if crossing.any():
        line = crossing.argmax() + 1
        raise UserError(f"{name}_A.txt: line {line} joins nodes of different graphs.")

    labels = _optional(folder, name, "graph_labels", num_graphs)
    if labels is not None:
        if labels.size(1) != 1:
            raise UserError(f"{name}_graph_labels.txt: one class per graph is needed.")
        labels = labels.unique(return_inverse=True)[1][:, 0]
    edge_attr = _optional(folder, name, "edge_labels", len(edges))
    if edge_attr is not None:
        edge_attr = one_hot(edge_attr, label_ranges(edge_attr), f"{name}_edge_labels.txt")
    node_labels = _optional(folder, name, "node_labels", num_nodes)
    return TUGraphs.of(
        name,
        torch.from_numpy(np.bincount(indicator - 1)),
        torch.from_numpy(edges.T.copy()),
        edge_attr,
        repeated="sum",
        node_labels=node_labels,
        layout=Layout(ranges=None if node_labels is None else label_ranges(node_labels)),
        node_attributes=_optional(folder, name, "node_attributes", num_nodes),
        labels=labels,
    )


def _optional(folder: Folder, name: str, part: str, rows: int) -> Tensor | None:
    """(rows, C) numbers of a file that a set may lack; its length must agree with the others."""
    if not (folder / f"{name}_{part}.txt").exists():
        return None
    table = _numbers(folder, name, part)
    if len(table) != rows:
        what = part.partition("_")[0]
        raise UserError(f"{name}_{part}.txt: has {len(table)} lines for {rows} {what}s.")
    return torch.from_numpy(table)


def _numbers(folder: Folder, name: str, part: str, columns: int | None = None) -> NDArray[Any]:
    """A file of comma-separated integers, or float32 attributes, as (rows, columns)."""
    file = folder / f"{name}_{part}.txt"
    if not file.exists():
        raise UserError(f"{file.name}: is missing from {folder}.")
    integers = part != "node_attributes"
    dtype = np.int64 if integers else np.float32
    try:
        with file.open("rb") as stream:
            table = pd.read_csv(stream, header=None, dtype=dtype, skipinitialspace=True)
    except (ValueError, OverflowError) as error:
        kind = "integers" if integers else "numbers"
        raise UserError(f"{file.name}: not a table of {kind}, or cut short ({error}).") from error
    if columns is not None and table.shape[1] != columns:
        raise UserError(f"{file.name}: has {table.shape[1]} columns where {columns} are expected.")
    return table.to_numpy(copy=True)
