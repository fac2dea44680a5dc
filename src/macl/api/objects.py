"""The objects that the functions of `macl.api` return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from macl import runs
from macl.api import encoders
from macl.runs.vectors import write_vectors

if TYPE_CHECKING:
    from macl.diagnosis import Diagnosis
    from macl.modalities.protocols import Dataset
    from macl.probes.score import Score


class Run(runs.Run):
    """A run folder, with the functions of `macl.api` that take a run as methods.

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()
    run.embed("pictures/").save("vectors.parquet")
    """

    def evaluate(self, **options: Any) -> list[Score]:
        """Evaluate the encoder; see `macl.evaluate`."""
        return encoders.evaluate(self.folder, **options)

    def embed(  # type: ignore[override]
        self, source: str | Path | Sequence[Any] | Dataset, **options: Any
    ) -> Vectors:
        """Turn data into vectors; see `macl.embed`."""
        return encoders.embed(self.folder, source, **options)

    def search(
        self, query: str | Path, vectors: str | Path | Vectors, **options: Any
    ) -> list[Match]:
        """List the stored vectors nearest to a query; see `macl.search`."""
        return encoders.search(self.folder, query, vectors, **options)

    def export(self, folder: str | Path, **options: Any) -> list[str]:
        """Write the encoder for other libraries; see `macl.export`."""
        return encoders.export(self.folder, folder, **options)

    def diagnose(self, **options: Any) -> Diagnosis:
        """Report gradient reduction, collapse and what to change; see `macl.diagnose`."""
        return encoders.diagnose(self.folder, **options)

    def report(self, output: str | Path | None = None, **options: Any) -> list[Path]:
        """Write a page with curves, results and a map; see `macl.api.report`."""
        return encoders.report(self.folder, output, **options)


class Match(NamedTuple):
    """A stored vector that was found."""

    name: str
    score: float
    """Cosine similarity to the query."""
    row: int
    """Its position among the stored vectors, from 0."""


@dataclass(frozen=True)
class Vectors:
    """Embeddings with the names of the embedded items."""

    values: Tensor
    """(N, D) float32, row i for item i."""
    names: Sequence[str]
    """N file names, sentences or SMILES strings."""

    rows: Sequence[int] | None = None
    """The rows of the input, from 1, that the items were read from; None: item i is row i."""
    skipped: Sequence[Any] = ()
    """Rows of the input that could not be read: number, name and reason."""

    def __len__(self) -> int:
        return len(self.values)

    def save(self, path: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write the vectors with their names; returns the files written.

        `path` ends in .parquet, .npz, .csv or .npy; see `macl.runs.vectors.write_vectors`.
        """
        return write_vectors(
            Path(path),
            self.values,
            self.names,
            rows=self.rows,
            skipped=self.skipped,
            overwrite=overwrite,
        )
