"""The objects that the functions of `macl.api` return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from macl import runs
from macl.api import encoders
from macl.api import vectors as api_vectors
from macl.api.common import PathLike, RunLike, open_encoder
from macl.core.errors import UserError
from macl.core.progress import silence
from macl.runs import index
from macl.runs.index import Match
from macl.runs.vectors import fingerprint, require_encoder, write_vectors

if TYPE_CHECKING:
    from macl.recipes import Overrides
    from macl.runs.elsewhere import Elsewhere
    from macl.runs.stored import Condition

__all__ = ["Index", "Match", "Run", "Vectors"]


class Run(runs.Run):
    """A run folder; the functions of `macl.api` that take a run are its methods.

    They are `evaluate`, `embed`, `search`, `export`, `diagnose` and `report`.

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()
    run.embed("pictures/").save("vectors.parquet")
    """

    evaluate = encoders.evaluate
    embed = api_vectors.embed  # type: ignore[assignment]
    search = api_vectors.search
    export = encoders.export
    diagnose = encoders.diagnose
    report = encoders.report


@dataclass(frozen=True)
class Index(index.Index):
    """Stored vectors that can be searched, and the encoder of the queries.

    photos = macl.Index.open("photos.index", run)
    photos.query("a red car", k=5, where=[("label", "==", "street")])
    """

    run: runs.Run | Elsewhere | None = None
    """Encodes texts and files that are queries; None: queries are vectors."""

    @classmethod
    def open(
        cls,
        vectors: PathLike | Vectors,
        run: RunLike | None = None,
        *,
        store: str | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> Index:
        """What `macl index` or `macl embed` wrote, or vectors in memory.

        `run` is the run whose encoder made them, or its folder; `store` is where the data of an
        index are, if they were put elsewhere.
        """
        if isinstance(vectors, Vectors):
            opened = cls.of(vectors.values, vectors.names, vectors.encoder)
        else:
            opened = cls.read(Path(vectors), store)
        return opened if run is None else opened.with_run(run, device, precision)

    def with_run(self, run: RunLike, device: str = "auto", precision: str = "auto") -> Index:
        """With the encoder of `run`, which must be the one that made the vectors."""
        opened = open_encoder(run, device, precision)
        require_encoder(self.encoder, fingerprint(opened.encoder), "what is searched")
        return replace(self, run=opened)

    def query(
        self,
        query: PathLike | Tensor,
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        overrides: Overrides | None = None,
    ) -> list[Match]:
        """The `k` nearest to a text, to the item of a file, or to a vector (D,), nearest first.

        `where` are conditions on columns and `overrides` how a file is read: see `macl.search`.
        """
        if isinstance(query, Tensor):
            return self.nearest(query[None], k, where)[0]
        ((_, matches),) = self._answers(query, k, where, overrides, one=True)
        return matches

    def query_all(
        self,
        queries: PathLike | Sequence[Any],
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        overrides: Overrides | None = None,
    ) -> list[tuple[str, list[Match]]]:
        """(name, the `k` nearest) of every item of a file or a list; see `query`."""
        return self._answers(queries, k, where, overrides, one=False)

    def _answers(
        self, query: Any, k: int, where: Any, overrides: Any, one: bool
    ) -> list[tuple[str, list[Match]]]:
        if self.run is None:
            raise UserError("a text or a file needs an encoder: open the index with its run.")
        takes_texts = self.run.modality.line_suffix is not None
        is_list = isinstance(query, list | tuple)
        source = query if is_list or not takes_texts or Path(query).exists() else [str(query)]
        with silence(), api_vectors.opened_items(self.run, source, overrides) as dataset:
            if one and len(dataset) != 1:  # said before any of them is encoded
                raise UserError(f"{query} holds {len(dataset):,} items; a query is one item.")
            values, names = self.run.embed(dataset), list(dataset.names)
        return list(zip(names, self.nearest(values, k, where), strict=True))


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
    encoder: str = ""
    """A fingerprint of the encoder that made them; `macl.search` compares it with the run's."""

    def __len__(self) -> int:
        return len(self.values)

    def save(
        self, path: str | Path, *, dtype: str = "float32", overwrite: bool = False
    ) -> list[Path]:
        """Write the vectors with their names; returns the files written.

        `path` ends in .parquet, .npz, .csv or .npy; see `macl.runs.vectors.write_vectors`.
        """
        return write_vectors(
            Path(path),
            self.values,
            self.names,
            rows=self.rows,
            skipped=self.skipped,
            encoder=self.encoder,
            dtype=dtype,
            overwrite=overwrite,
        )
