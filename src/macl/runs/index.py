"""An index of vectors: a folder that an engine searches, or the vectors themselves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from macl.core.errors import UserError
from macl.core.files import atomic_folder
from macl.core.progress import silence
from macl.recipes import Overrides
from macl.runs.elsewhere import Elsewhere, RunLike, open_encoder, opened_items
from macl.runs.engines import Engine, Floats, engine
from macl.runs.engines.exact import Exact
from macl.runs.run import Run
from macl.runs.stored import Condition, Stored
from macl.runs.vectors import Vectors, fingerprint

MANIFEST, ITEMS = "index.json", "items.parquet"
SAMPLE, DEPTH = 200, 10
"""Queries by which an index is judged, and how many of their nearest are looked at."""
WIDEST = 4096
"""Largest breadth that is tried for the wanted recall."""
GAIN = 0.002
"""Recall that a doubled breadth has to gain."""


class Match(NamedTuple):
    """A stored vector that was found."""

    name: str
    score: float
    """Cosine similarity to the query."""
    row: int
    """Its position among the stored vectors, from 0."""


@dataclass(frozen=True)
class Built:
    """What building an index gave."""

    engine: str
    encoder: str
    """The fingerprint of the encoder of the vectors."""
    count: int
    settings: dict[str, Any]
    recall: float
    """Recall@10 against the exact search, of a sample of the vectors; each without itself."""
    queries_per_second: float
    """One query at a time."""
    build_seconds: float


@dataclass(frozen=True)
class Index:
    """Stored vectors that can be searched, and the encoder of the queries.

    photos = macl.Index.open("photos.index", run)
    photos.query("a red car", k=5, where=[("label", "==", "street")])
    """

    engine: Engine
    encoder: str
    """The fingerprint of the encoder of the vectors; empty where they do not say."""
    built: Built | None = None
    """None for vectors that are searched as they are."""
    run: Run | Elsewhere | None = None
    """Encodes texts and files that are queries; None: queries are vectors."""

    @classmethod
    def open(
        cls,
        vectors: str | os.PathLike[str] | Vectors,
        run: RunLike | None = None,
        *,
        store: str | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> Index:
        """What `macl index` or `macl embed` wrote, or vectors in memory; `run` encoded them.

        The data of an index are read elsewhere only if `store` names the place too.
        """
        if isinstance(vectors, Vectors):
            opened = cls(Exact(Stored.of(vectors)), vectors.encoder)
        elif (Path(vectors) / MANIFEST).is_file():
            opened = cls._read(Path(vectors), store)
        else:
            stored = Stored.open(Path(vectors))
            opened = cls(Exact(stored), stored.encoder)
        if run is None:
            return opened
        encodes = open_encoder(run, device, precision)
        if opened.encoder not in ("", fingerprint(encodes.encoder)):
            raise UserError(
                "what is searched was made by another encoder than this run's: distances between "
                "their vectors mean nothing. Embed the items again with this run."
            )
        return replace(opened, run=encodes)

    @classmethod
    def _read(cls, path: Path, store: str | None) -> Index:
        try:
            built = Built(**json.loads((path / MANIFEST).read_text(encoding="utf-8")))
            kind, settings = engine(built.engine), built.settings
            elsewhere = settings.get("store")
            if elsewhere not in (None, store):
                raise UserError(f"{path} has its data in {elsewhere}: give `store=` to allow it.")
            items = Stored(str(path), [path / ITEMS])
            return cls(kind.open(path, settings, items), built.encoder, built)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} cannot be read as an index ({error}).") from error

    def nearest(
        self, queries: Tensor, k: int, where: Sequence[Condition] = ()
    ) -> list[list[Match]]:
        """The k nearest of each of (M, D) queries, nearest first."""
        if k < 1:
            raise UserError(f"k={k}: list one at least.")
        width = self.engine.width
        if self.encoder and width < queries.shape[1]:  # of the same encoder, with `dims`
            queries = queries[:, :width]
        if queries.shape[1] != width:
            raise UserError(
                f"the vectors have {width} dimensions and the query has "
                f"{queries.shape[1]}: they were made by another encoder."
            )
        scores, positions = self.engine.nearest(queries.float().cpu().numpy(), k, where)
        there = positions >= 0
        names = iter(self.engine.items.take(positions[there], ["name"])["name"].to_pylist())
        return [
            [Match(next(names), float(s), int(p)) for s, p in zip(*row, strict=True) if p >= 0]
            for row in zip(scores, positions, strict=True)
        ]

    def query(
        self,
        query: str | os.PathLike[str] | Tensor,
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        overrides: Overrides | None = None,
    ) -> list[Match]:
        """The nearest to a text, to the item of a file, or to a vector (D,); see `macl.search`."""
        if isinstance(query, Tensor):
            return self.nearest(query[None], k, where)[0]
        ((_, matches),) = self._answers(query, k, where, overrides, one=True)
        return matches

    def query_all(
        self,
        queries: str | os.PathLike[str] | Sequence[Any],
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
        with silence(), opened_items(self.run, source, overrides) as dataset:
            if one and len(dataset) != 1:  # said before any of them is encoded
                raise UserError(f"{query} holds {len(dataset):,} items; a query is one item.")
            values, names = self.run.embed(dataset), list(dataset.names)
        return list(zip(names, self.nearest(values, k, where), strict=True))


def build(
    vectors: Path, folder: Path, name: str, kind: str | None, store: str | None, recall: float
) -> None:
    """Build an index in `folder`, which is new, and judge it by a sample; see `macl.index`."""
    chosen, stored = engine(name), Stored.open(vectors)
    if folder.exists():
        raise UserError(f"{folder} is there already: choose another name, or remove it.")
    with atomic_folder(folder) as partial:
        begun = time.perf_counter()
        settings = chosen.build(stored, partial, kind, store)
        seconds = time.perf_counter() - begun
        stored.write_items(partial / ITEMS)
        opened = chosen.open(partial, settings, Stored(str(partial), [partial / ITEMS]))
        judged = _judge(stored)
        reached, speed = judged(opened)
        while opened.breadth and reached < recall and opened.breadth < WIDEST:
            opened.breadth *= 2
            before, (reached, speed) = reached, judged(opened)
            if reached < before + GAIN:  # the codes are the limit, not the breadth
                break
        if opened.breadth:
            settings["breadth"] = opened.breadth
        built = Built(name, stored.encoder, len(stored), settings, reached, speed, seconds)
        (partial / MANIFEST).write_text(json.dumps(asdict(built), indent=2), encoding="utf-8")


def _judge(stored: Stored) -> Callable[[Engine], tuple[float, float]]:
    """Gives (recall@10, queries a second) of engines, by a sample of the vectors."""
    sample = stored.sample(SAMPLE)
    queries: Floats = stored.numbers(sample)

    def others(own: int, positions: Any) -> set[int]:
        return set([int(p) for p in positions if p not in (-1, own)][:DEPTH])

    _, exact = Exact(stored).nearest(queries, DEPTH + 1)
    expected = list(map(others, sample, exact))

    def judged(opened: Engine) -> tuple[float, float]:
        begun = time.perf_counter()
        answers = [opened.nearest(query[None], DEPTH + 1)[1][0] for query in queries]
        speed = len(answers) / (time.perf_counter() - begun)
        found = map(others, sample, answers)
        shares = [len(f & e) / max(1, len(e)) for f, e in zip(found, expected, strict=True)]
        return float(np.mean(shares)), speed

    return judged
