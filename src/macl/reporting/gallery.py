"""Some items with their nearest neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from macl.reporting.map import EmbeddingMap

MAX_QUERIES = 8


class Neighbor(NamedTuple):
    """A neighbor of a query."""

    number: int
    cosine: float
    same: bool | None
    """Whether it belongs to the query (has its label); None without labels."""


Query = tuple[int, list[Neighbor]]
"""The number of an item, and its nearest neighbors."""


def gallery(shown: EmbeddingMap) -> list[Query]:
    """The first item of each of the largest classes; evenly spread items without labels."""
    labels = shown.labels
    if labels is None:
        numbers = evenly_spread(len(shown), MAX_QUERIES)
    else:
        largest = Counter(labels).most_common(MAX_QUERIES)
        numbers = [labels.index(label) for label, _ in sorted(largest)]

    def same(query: int, other: int) -> bool | None:
        return None if labels is None else labels[other] == labels[query]

    nearest = shown.similarities[numbers], shown.neighbors[numbers]
    return queries(numbers, nearest, same)


def queries(
    numbers: Sequence[int], nearest: tuple[Tensor, Tensor], same: Callable[[int, int], bool | None]
) -> list[Query]:
    """Queries with what `nearest_rows` found for them: (Q, k) cosines and positions."""
    cosines, positions = (values.tolist() for values in nearest)
    return [
        (query, [Neighbor(j, c, same(query, j)) for j, c in zip(near, row, strict=True)])
        for query, near, row in zip(numbers, positions, cosines, strict=True)
    ]


def evenly_spread(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, evenly spread."""
    picked = min(count, most)
    return [number * count // picked for number in range(picked)]
