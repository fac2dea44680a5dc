"""One HTML page of a run, of several runs or of a comparison: `macl report`."""

from __future__ import annotations

from enum import StrEnum


class Projection(StrEnum):
    """The method that projects embeddings to the plane."""

    UMAP = "umap"
    PCA = "pca"
