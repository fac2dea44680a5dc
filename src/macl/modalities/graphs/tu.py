"""Reader of the TU layout: NAME_A.txt, NAME_graph_indicator.txt and so on, in a folder or a zip.

A zip is read in place, so nothing is ever unpacked or written. Every inconsistency between the
files is reported with the file's name, because a truncated file is the usual mistake. PyG's own
reader unpacks the archive, caches a pickle, and does not compare the files with each other.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from macl.core.errors import UserError, nearest
from macl.core.limits import refuse_bomb
from macl.modalities.graphs.dataset import GraphDataset, Layout, Ranges, graph_dataset, one_hot
from macl.modalities.graphs.sections import GraphDataConfig

Folder = Path | zipfile.Path
_ADJACENCY = "_A.txt"


def read_tu(
    config: GraphDataConfig,
    path: Path,
    name: str | None = None,
    training_layout: Callable[[], Layout] | None = None,
) -> GraphDataset:
    """Read the set `name`, or the only one there is, from `path`.

    `path` is NAME.zip, a folder with NAME.zip, a folder with NAME_A.txt, or a folder that has it in
    NAME/ or NAME/raw/. `training_layout` gives the layout of the training set, where that is
    another one; it is asked for only where nodes have labels.
    """
    try:
        folder, name = _locate(path, name)
        return _read(config, folder, name, training_layout)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(
            f"{path}: the zip archive cannot be read ({error}). Fetch it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error


def _locate(path: Path, name: str | None) -> tuple[Folder, str]:
    """The folder that holds NAME_A.txt, and NAME."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder. Give a TU folder or NAME.zip.")
    sets: dict[str, Folder] = {}
    files: list[Any]
    if path.is_dir():
        sets = {archive.stem: archive for archive in path.glob("*.zip")}
        places = ("", "*/", "*/raw/")
        files = [file for place in places for file in path.glob(f"{place}*{_ADJACENCY}")]
    elif path.suffix.lower() != ".zip" and not zipfile.is_zipfile(path):
        raise UserError(
            f"{path}: graphs come as a folder in the TU layout, as NAME.zip, or in a file that "
            "ends in .graphml, .gml, .gexf, .json or .csv."
        )
    else:
        refuse_bomb(path)
        archive = zipfile.ZipFile(path)
        files = [zipfile.Path(archive, m) for m in archive.namelist() if m.endswith(_ADJACENCY)]
    if files and name not in sets:
        sets = {file.name.removesuffix(_ADJACENCY): file.parent for file in files}
    if not sets:
        raise UserError(f"{path}: holds no graphs in the TU layout (no NAME{_ADJACENCY}).")
    if name is None and len(sets) > 1:
        listed = ", ".join(sorted(sets))
        raise UserError(f"{path}: holds several sets; set data.name to one of {listed}.")
    found = name or next(iter(sets))
    if found not in sets:
        raise UserError(f"{path}: holds no set {found!r}.{nearest(found, sets)}")
    folder = sets[found]
    return (
        _locate(folder, name) if isinstance(folder, Path) and folder.is_file() else (folder, found)
    )


def _read(
    config: GraphDataConfig, folder: Folder, name: str, training_layout: Callable[[], Layout] | None
) -> GraphDataset:
    def file(part: str) -> Folder:
        return folder / f"{name}_{part}.txt"

    indicator = _numbers(file("graph_indicator"), columns=1)[:, 0]
    if indicator[0] != 1 or not np.isin(np.diff(indicator), (0, 1)).all():
        where = file("graph_indicator").name
        raise UserError(f"{where}: graphs must be numbered 1, 2, 3, … without gaps, in order.")
    num_nodes = len(indicator)

    edges = _numbers(file("A"), columns=2)
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

    classes = _optional(file("graph_labels"), int(indicator[-1]), "graphs")
    if classes is not None and classes.size(1) != 1:
        raise UserError(f"{name}_graph_labels.txt: one class per graph is needed.")
    edge_attr = _optional(file("edge_labels"), len(edges), "edges")
    if edge_attr is not None:
        edge_attr = one_hot(edge_attr, _ranges(edge_attr), file("edge_labels").name)
    layout = Layout()
    labels = _optional(file("node_labels"), num_nodes, "nodes")
    if labels is not None:
        ranges = _ranges(labels)
        layout = training_layout() if training_layout else Layout(ranges=ranges)
        labels = _laid_out(labels, ranges, layout.ranges, file("node_labels").name)
    dataset = graph_dataset(
        config,
        name,
        torch.from_numpy(np.bincount(indicator - 1)),
        torch.from_numpy(edges.T.copy()),
        edge_attr,
        repeated="sum",
        labels=labels,
        attributes=_optional(file("node_attributes"), num_nodes, "nodes"),
        layout=layout,
    )
    if classes is not None:
        dataset.labels = classes.unique(return_inverse=True)[1][:, 0]
    return dataset


def _ranges(labels: Tensor) -> Ranges:
    """The ranges of the columns of (N, L) labels."""
    lows, highs = labels.amin(0).tolist(), labels.amax(0).tolist()
    return tuple((low, high - low + 1) for low, high in zip(lows, highs, strict=True))


def _laid_out(labels: Tensor, ranges: Ranges, known: Ranges | None, file: str) -> Tensor | None:
    """(N, L) labels within `ranges` as the one-hot columns of `known`; None: they mean nothing."""
    if known is None:
        return None
    if len(ranges) != len(known):
        raise UserError(f"{file}: has {len(ranges)} columns; training had {len(known)}.")
    for (low, width), (known_low, known_width) in zip(ranges, known, strict=True):
        if low < known_low or low + width > known_low + known_width:
            raise UserError(
                f"{file}: labels {low} to {low + width - 1} go beyond those of "
                f"the training set, {known_low} to {known_low + known_width - 1}."
            )
    return one_hot(labels, known, file)


def _optional(file: Folder, rows: int, what: str) -> Tensor | None:
    """(rows, C) numbers of a file that a set may lack; its length must agree with the others."""
    if not file.exists():
        return None
    table = _numbers(file)
    if len(table) != rows:
        raise UserError(f"{file.name}: has {len(table)} lines for {rows} {what}.")
    return torch.from_numpy(table)


def _numbers(file: Folder, columns: int | None = None) -> NDArray[Any]:
    """A file of comma-separated integers, or float32 attributes, as (rows, columns)."""
    if not file.exists():
        raise UserError(f"{file.name}: is missing from {file.parent}.")
    integers = not file.name.endswith("_node_attributes.txt")
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
