"""A run or a comparison as one page to look at: `macl report`."""

from __future__ import annotations

from enum import Enum


class Projection(str, Enum):
    """How embeddings come onto a plane."""

    UMAP = "umap"
    PCA = "pca"
