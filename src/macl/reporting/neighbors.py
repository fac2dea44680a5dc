"""Items with their nearest neighbors, and how the two sides of pairs find each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from macl.core.similarity import nearest_rows
from macl.reporting import Projection
from macl.reporting.map import EmbeddingMap, lay_out
from macl.reporting.templates import drawn
from macl.runs import Run

MAX_QUERIES = 8
QUERIES, SHOWN, BATCH = 6, 5, 12
"""Examples of each direction, what is shown of each, and pairs of the small batch."""

CLOUD = 600
"""Points of each side on the common map."""


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


def cross(run: Run, shown: EmbeddingMap) -> dict[str, Any] | None:
    """How the items of a map and their captions find each other, for the template.

    `gap` is ‖mean of the items − mean of the captions‖, all of length 1; `matrix` has the cosines
    of a batch of items with different captions. None where items have no other side.
    """
    facing = run.modality.facing(shown.dataset, shown.indices)
    if facing is None:
        return None
    others, matches = facing
    texts = F.normalize(run.embed(others), dim=1)
    belongs = {(i, j) for i, j in matches.tolist()}
    first = dict(reversed(matches.tolist()))  # of each item its first caption
    items = evenly_spread(len(shown), QUERIES)
    captions = list(dict.fromkeys(first[i] for i in items))
    to_texts = nearest_rows(shown.vectors[items], texts, SHOWN)
    to_items = nearest_rows(texts[captions], shown.vectors, SHOWN)
    # Of the items with the same first caption the first one.
    item_of = {first[item]: item for item in sorted(first, reverse=True)}
    different = sorted(item_of.values())
    batch = [different[i] for i in evenly_spread(len(different), BATCH)]
    columns = torch.tensor([first[i] for i in batch])
    return {
        "texts": [str(name) for name in others.names],
        "to_texts": queries(items, to_texts, lambda i, j: (i, j) in belongs),
        "to_items": queries(captions, to_items, lambda j, i: (i, j) in belongs),
        "gap": float((shown.vectors.mean(0) - texts.mean(0)).norm()),
        "clouds": _clouds(shown.vectors, texts, first),
        "batch": batch,
        "matrix": drawn("matrix", cosines=(shown.vectors[batch] @ texts[columns].T).tolist()),
    }


def _clouds(items: Tensor, texts: Tensor, first: dict[int, int]) -> Markup:
    """Both sides in the plane of their common principal components, as SVG."""
    some = evenly_spread(len(items), CLOUD)
    captions = list(dict.fromkeys(first[i] for i in some))
    places = lay_out(torch.cat([items[some], texts[captions]]), Projection.PCA) * 380 + 10
    left, right = places[: len(some)].tolist(), places[len(some) :].tolist()
    place_of = dict(zip(captions, right, strict=True))
    pairs = [(place, place_of[first[i]]) for i, place in zip(some, left, strict=True)]
    return drawn("clouds", items=left, captions=right, pairs=pairs[: BATCH * 4])
