"""Pictures of made-up embeddings, for tests that need no encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from macl.core.similarity import nearest_rows
from macl.modalities.text.data import TextDataset
from macl.reporting import Projection
from macl.reporting.items import Looks
from macl.reporting.map import NEIGHBORS, EmbeddingMap, lay_out
from macl.reporting.page import Picture

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload="window.hacked = 1">',
    "<!-- <script> &amp; {{ 7 * 7 }} \u2028 ünïcödé",
)


def embedding_map(
    names: Sequence[str], classes: Sequence[str] = (), dimensions: int = 8
) -> EmbeddingMap:
    """Item i is of class i mod C; classes lie apart."""
    generator = torch.Generator().manual_seed(0)
    count = len(names)
    labels = [i % len(classes) for i in range(count)] if classes else None
    centers = torch.randn(max(1, len(classes)), dimensions, generator=generator)
    noise = torch.randn(count, dimensions, generator=generator) / 3
    vectors = F.normalize(centers[torch.tensor(labels or [0] * count)] + noise, dim=1)
    similarities, neighbors = nearest_rows(vectors, vectors, NEIGHBORS, exclude_own=True)
    return EmbeddingMap(
        dataset=TextDataset([list(names)]),
        which="the test split",
        indices=list(range(count)),
        labels=labels,
        classes=list(classes),
        vectors=vectors,
        points=lay_out(vectors, Projection.PCA),
        projection=Projection.PCA,
        neighbors=neighbors,
        similarities=similarities,
    )


def picture(names: Sequence[str], classes: Sequence[str] = ()) -> Picture:
    """A map of sentences."""
    return Picture(embedding_map(names, classes), Looks(list(names)))
