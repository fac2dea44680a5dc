"""A run's embeddings in the plane: the items, their positions and their nearest neighbors."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from macl import recipes
from macl.core.errors import UserError
from macl.core.installed import require
from macl.core.section import absolute
from macl.core.similarity import nearest_rows
from macl.modalities.protocols import Dataset
from macl.modalities.splits import Subset
from macl.reporting import Projection
from macl.reporting.charts import literal
from macl.reporting.templates import PALETTE
from macl.runs import Run

MARKERS = ("o", "s", "^", "D")
"""Names of matplotlib; the page draws the same shapes."""

MAX_LEGEND = 20
"""The largest number of classes with a legend."""

NEIGHBORS = 6
"""Neighbors that are shown beside an item."""

UMAP_NEIGHBORS = 15
"""UMAP's default. With fewer items than that PCA is used."""

UMAP_PAYS = 1000
"""Items from which UMAP is the default: compiling it takes about 40 s whatever their number, and
PCA still separates the classes of fewer."""


@dataclass(frozen=True)
class EmbeddingMap:
    """N items of a data set on a plane."""

    dataset: Dataset
    which: str
    """Which items they are: "the test split"."""
    indices: list[int]
    """(N,) their positions in the data set."""
    labels: list[int] | None
    """(N,) numbers of the classes that occur here, from 0; None without labels."""
    classes: list[str]
    """The name of label c; empty without labels."""
    vectors: Tensor
    """(N, D) backbone features of length 1."""
    points: NDArray[np.float64]
    """(N, 2) within [0, 1], at one scale for both axes."""
    projection: Projection
    neighbors: Tensor
    """(N, k) positions in the map, nearest first, by cosine among the N items."""
    similarities: Tensor
    """(N, k) their cosines."""

    key: ClassVar = "map"
    size: ClassVar = (6, 5)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def agreement(self) -> float | None:
        """Percent of all neighbors that share the label of their item; None without labels."""
        if self.labels is None:
            return None
        labels = torch.tensor(self.labels)
        return 100 * (labels[self.neighbors] == labels[:, None]).double().mean().item()

    def draw(self, axes: Axes) -> None:
        """The map by matplotlib, with a legend of up to `MAX_LEGEND` classes."""
        labels = np.array(self.labels if self.labels is not None else [0] * len(self))
        for label in np.unique(labels):
            color, marker = class_style(int(label))
            x, y = self.points[labels == label].T
            name = literal(self.classes[label]) if self.classes else None
            axes.scatter(x, y, s=9, lw=0, color=color, marker=marker, label=name)
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.set_xlabel(f"{self.projection.upper()} of {len(self):,} items: {self.which}")
        axes.spines[:].set_visible(False)
        if 0 < len(self.classes) <= MAX_LEGEND:
            beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            axes.legend(**beside, frameon=False, markerscale=2)


def class_style(number: int) -> tuple[str, str]:
    """The color and the marker of class `number`: ten colors, then the next marker."""
    return PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)]


def choose_projection(items: int, wanted: Projection | None = None) -> Projection:
    """The one that is wanted, by default UMAP where it pays and is installed; PCA of few items."""
    if items <= UMAP_NEIGHBORS:
        return Projection.PCA
    installed = importlib.util.find_spec("umap") is not None
    return wanted or (Projection.UMAP if installed and items >= UMAP_PAYS else Projection.PCA)


def embedding_map(
    run: Run, most: int, projection: Projection | None = None, data: Path | None = None
) -> EmbeddingMap:
    """Embed a sample of at most `most` items, the same each time, and project it to the plane."""
    encode = run.embed  # before the data is read: fails early for a run without encoder
    dataset, which = _items(run, data)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    sample = Subset(dataset, order[:most].sort().values)
    if len(sample) < 2:
        raise UserError("a map needs at least two items.")
    vectors = F.normalize(encode(sample), dim=1)
    if not vectors.isfinite().all():
        raise UserError("the encoder's features are not finite: its training has diverged.")
    similarities, neighbors = nearest_rows(vectors, vectors, NEIGHBORS, exclude_own=True)
    labels, classes = None, list[str]()
    if sample.labels is not None:  # the classes that are present, counted from 0
        present, numbers = sample.labels.unique(return_inverse=True)
        known: Sequence[Any] = dataset.classes
        labels = numbers.tolist()
        classes = [str(known[c] if 0 <= c < len(known) else c) for c in present.tolist()]
    used = choose_projection(len(sample), projection)
    return EmbeddingMap(
        dataset=dataset,
        which=which,
        indices=sample.indices,
        labels=labels,
        classes=classes,
        vectors=vectors,
        points=lay_out(vectors, used),
        projection=used,
        neighbors=neighbors,
        similarities=similarities,
    )


def _items(run: Run, data: Path | None) -> tuple[Dataset, str]:
    """What the encoder was judged on where that is there, else what it was trained on."""
    overrides = {} if data is None else {"data.path": absolute(data)}
    config = recipes.override(run.recipe, overrides).data
    if not run.modality.has_splits:
        return run.modality.load(config, "train"), "the whole set"
    try:
        return run.modality.load(config, "test"), "the test split"
    except UserError:
        return run.modality.load(config, "train"), "the training split"


def lay_out(vectors: Tensor, projection: Projection) -> NDArray[np.float64]:
    """(N, D) → (N, 2) within [0, 1]; the longer side of the picture fills it."""
    if projection is Projection.UMAP:
        plane = _umap(vectors)
    else:
        centered = vectors.double() - vectors.double().mean(dim=0)
        left, singular, _ = torch.linalg.svd(centered, full_matrices=False)
        plane = F.pad((left * singular)[:, :2], (0, max(0, 2 - len(singular)))).numpy()
    plane = plane - plane.min(axis=0)
    extent = float(plane.max())
    return plane / extent if extent > 0 else np.full_like(plane, 0.5)


def _umap(vectors: Tensor) -> NDArray[np.float64]:
    require("umap", "viz", "`projection=umap`")
    import umap  # type: ignore[import-untyped]

    # A seed makes the result repeatable; UMAP is then single-threaded in any case.
    model = umap.UMAP(n_neighbors=UMAP_NEIGHBORS, metric="cosine", random_state=0, n_jobs=1)
    threads = torch.get_num_threads()
    try:
        return np.asarray(model.fit_transform(vectors.numpy()), dtype=np.float64)
    finally:
        # Numba sets the process' OpenMP threads, hence torch's, and so the last bits of its sums.
        torch.set_num_threads(threads)
