"""Some items with their nearest neighbours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from macl.reporting.map import EmbeddingMap

MAX_QUERIES = 8


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of a query."""

    number: int
    """Its position in the map."""
    cosine: float
    same: bool | None
    """Whether it has the query's label; None without labels."""


@dataclass(frozen=True)
class Query:
    """An item and its nearest neighbours."""

    number: int
    neighbours: list[Neighbour]


def gallery(shown: EmbeddingMap) -> list[Query]:
    """At most `MAX_QUERIES` items: the first of each of the largest classes.

    Without labels they are evenly spread over the sample.
    """
    return [Query(number, _neighbours(shown, number)) for number in _queries(shown)]


def agreement(shown: EmbeddingMap) -> float | None:
    """Percent of all neighbours that share the label of their item; None without labels."""
    if shown.labels is None:
        return None
    hits = [n.same for number in range(len(shown)) for n in _neighbours(shown, number)]
    return 100 * sum(map(bool, hits)) / len(hits)


def _queries(shown: EmbeddingMap) -> list[int]:
    if shown.labels is None:
        stride = max(1, len(shown) // MAX_QUERIES)
        return list(range(0, len(shown), stride))[:MAX_QUERIES]
    largest = Counter(shown.labels).most_common(MAX_QUERIES)
    return [shown.labels.index(label) for label, _ in sorted(largest)]


def _neighbours(shown: EmbeddingMap, number: int) -> list[Neighbour]:
    labels = shown.labels
    return [
        Neighbour(other, cosine, None if labels is None else labels[other] == labels[number])
        for other, cosine in zip(
            shown.neighbours[number].tolist(), shown.similarities[number].tolist(), strict=True
        )
    ]
