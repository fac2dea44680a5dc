"""Two sides of pairs on the page: retrieval both ways, both clouds, cosines of a small batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from macl.core.similarity import nearest_rows
from macl.reporting import Projection
from macl.reporting.gallery import Neighbour
from macl.reporting.map import EmbeddingMap, lay_out
from macl.runs import Run

QUERIES, SHOWN, BATCH = 6, 5, 12
"""Examples of each direction, what is shown of each, and pairs of the small batch."""

CLOUD = 600
"""Points of each side on the common map."""

Example = tuple[int, list[Neighbour]]
"""The number of a query, and what is nearest to it on the other side."""


@dataclass(frozen=True)
class Crossing:
    """How the items of a map and their captions find each other."""

    texts: list[str]
    to_texts: list[Example]
    """Items of the map with their nearest captions."""
    to_items: list[Example]
    """Captions with their nearest items."""
    gap: float
    """‖mean of the items − mean of the captions‖, all of length 1."""
    clouds: Markup
    batch: list[int]
    """Items of different captions, whose cosines are `matrix`."""
    matrix: Markup


def cross(run: Run, shown: EmbeddingMap) -> Crossing | None:
    """Both sides of the items on a map; None where items have no other side."""
    facing = run.modality.facing(shown.dataset, shown.indices)
    if facing is None:
        return None
    others, matches = facing
    texts = F.normalize(run.embed(others), dim=1)
    belongs = {(i, j) for i, j in matches.tolist()}
    first = dict(reversed(matches.tolist()))  # of each item its first caption
    spread = _spread(len(shown), QUERIES)
    asked = list(dict.fromkeys(first[i] for i in spread))
    batch = _different(first, BATCH)
    columns = torch.tensor([first[i] for i in batch])
    return Crossing(
        texts=[str(name) for name in others.names],
        to_texts=_examples(spread, shown.vectors, texts, belongs),
        to_items=_examples(asked, texts, shown.vectors, {(j, i) for i, j in belongs}),
        gap=float((shown.vectors.mean(0) - texts.mean(0)).norm()),
        clouds=_clouds(shown.vectors, texts, first),
        batch=batch,
        matrix=_matrix(shown.vectors[batch] @ texts[columns].T),
    )


def _examples(
    queries: Sequence[int], vectors: Tensor, others: Tensor, belongs: set[tuple[int, int]]
) -> list[Example]:
    cosines, places = nearest_rows(vectors[list(queries)], others, min(SHOWN, len(others)))
    return [
        (query, [Neighbour(j, c, (query, j) in belongs) for j, c in zip(near, row, strict=True)])
        for query, near, row in zip(queries, places.tolist(), cosines.tolist(), strict=True)
    ]


def _spread(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, evenly spread."""
    return list(range(0, count, max(1, count // most)))[:most]


def _different(first: dict[int, int], most: int) -> list[int]:
    """At most `most` items of which no two have the same first caption."""
    found: dict[int, int] = {}
    for item in sorted(first):
        found.setdefault(first[item], item)
    items = sorted(found.values())
    return [items[i] for i in _spread(len(items), most)]


def _clouds(items: Tensor, texts: Tensor, first: dict[int, int]) -> Markup:
    """Both sides in the plane of their common principal components, as SVG."""
    some = _spread(len(items), CLOUD)
    captions = list(dict.fromkeys(first[i] for i in some))[:CLOUD]
    places = lay_out(torch.cat([items[some], texts[captions]]), Projection.PCA) * 380 + 10
    here = dict(zip(captions, places[len(some) :].tolist(), strict=True))
    lines: list[str] = []
    dots: list[str] = []
    for number, (x, y) in zip(some, places[: len(some)].tolist(), strict=True):
        dots.append(f'<circle class="cloud-item" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
        if len(lines) < BATCH * 4 and first[number] in here:
            u, v = here[first[number]]
            lines.append(f"M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}")
    crosses = "".join(
        f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6" for x, y in places[len(some) :].tolist()
    )
    return Markup(
        '<svg viewBox="0 0 400 400" role="img" aria-label="Items and captions on one map">'
        f'<path class="cloud-pair" d="{"".join(lines)}"/>{"".join(dots)}'
        f'<path class="cloud-text" d="{crosses}"/></svg>'
    )


def _matrix(cosines: Tensor) -> Markup:
    """(n, n) cosines as squares whose opacity grows from the smallest to the largest, as SVG."""
    low, high = float(cosines.min()), float(cosines.max())
    shades = (cosines - low) / max(high - low, 1e-9)
    cells = [
        f'<rect class="cell" x="{10 * j}" y="{10 * i}" width="9.5" height="9.5" '
        f'fill-opacity="{shade:.2f}"><title>{cosines[i, j].item():.2f}</title></rect>'
        for i, row in enumerate(shades.tolist())
        for j, shade in enumerate(row)
    ]
    side = 10 * len(cosines)
    return Markup(
        f'<svg viewBox="0 0 {side} {side}" role="img" aria-label="Cosines of {len(cosines)} '
        f'pictures and their captions">{"".join(cells)}</svg>'
    )
