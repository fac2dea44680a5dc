"""An index of vectors: a folder that an engine searches, or the vectors themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from macl.core.errors import UserError
from macl.core.files import atomic_folder
from macl.runs.engines import Engine, Floats, engine
from macl.runs.engines.exact import Exact
from macl.runs.stored import Condition, Stored

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
    """What building an index gave: `Index.built`."""

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
    """Vectors that can be searched."""

    engine: Engine
    encoder: str
    """The fingerprint of the encoder of the vectors; empty where they do not say."""
    built: Built | None = None
    """None for vectors that are searched as they are."""

    @classmethod
    def read(cls, path: Path, store: str | None = None) -> Self:
        """What `build` or `macl embed` wrote.

        An index may say that its data lie elsewhere: they are read there if `store` names the
        place too.
        """
        file = path / MANIFEST
        if not file.is_file():
            stored = Stored.open(path)
            return cls(Exact(stored), stored.encoder)
        try:
            built = Built(**json.loads(file.read_text(encoding="utf-8")))
            kind, settings = engine(built.engine), built.settings
            elsewhere = settings.get("store")
            if elsewhere not in (None, store):
                raise UserError(f"{path} has its data in {elsewhere}: give `store=` to allow it.")
            items = Stored(str(path), [path / ITEMS])
            return cls(kind.open(path, settings, items), built.encoder, built)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} cannot be read as an index ({error}).") from error

    @classmethod
    def of(cls, values: Tensor, names: Sequence[str], encoder: str) -> Self:
        """Vectors in memory."""
        return cls(Exact(Stored.of(values.float().cpu(), names, encoder)), encoder)

    @classmethod
    def build(
        cls,
        vectors: Path,
        folder: Path,
        name: str,
        *,
        kind: str | None = None,
        store: str | None = None,
        recall: float = 0.95,
    ) -> Self:
        """Build an index in `folder`, which is new, and judge it by a sample.

        It searches as widely as the wanted `recall` needs.
        """
        chosen, stored = engine(name), Stored.open(vectors)
        if folder.exists():
            raise UserError(f"{folder} is there already: choose another name, or remove it.")
        with atomic_folder(folder) as partial:
            begun = time.perf_counter()
            settings = chosen.build(stored, partial, kind, store)
            seconds = time.perf_counter() - begun
            stored.write_items(partial / ITEMS)
            opened = chosen.open(partial, settings, Stored(str(partial), [partial / ITEMS]))
            judged = _Judge(stored)
            reached, speed = judged.of(opened)
            while opened.breadth and reached < recall and opened.breadth < WIDEST:
                opened.breadth *= 2
                before, (reached, speed) = reached, judged.of(opened)
                if reached < before + GAIN:  # the codes are the limit, not the breadth
                    break
            if opened.breadth:
                settings["breadth"] = opened.breadth
            built = Built(name, stored.encoder, len(stored), settings, reached, speed, seconds)
            (partial / MANIFEST).write_text(json.dumps(asdict(built), indent=2), encoding="utf-8")
        return cls.read(folder, store)

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
        names = iter(self.engine.items.names(positions[there]))
        return [
            [Match(next(names), float(s), int(p)) for s, p in zip(*row, strict=True) if p >= 0]
            for row in zip(scores, positions, strict=True)
        ]


class _Judge:
    """Compares engines with the exact search on a sample of the vectors."""

    def __init__(self, stored: Stored) -> None:
        self.rows = stored.sample(SAMPLE)
        self.queries: Floats = stored.numbers(self.rows)
        _, positions = Exact(stored).nearest(self.queries, DEPTH + 1)
        self.expected = [
            self._others(own, row) for own, row in zip(self.rows, positions, strict=True)
        ]

    def of(self, opened: Engine) -> tuple[float, float]:
        """(recall@10, queries a second)."""
        begun = time.perf_counter()
        answers = [opened.nearest(query[None], DEPTH + 1)[1][0] for query in self.queries]
        speed = len(answers) / (time.perf_counter() - begun)
        shares = [
            len(self._others(own, answer) & expected) / max(1, len(expected))
            for own, answer, expected in zip(self.rows, answers, self.expected, strict=True)
        ]
        return float(np.mean(shares)), speed

    def _others(self, own: int, positions: Any) -> set[int]:
        return set([int(p) for p in positions if p not in (-1, own)][:DEPTH])
