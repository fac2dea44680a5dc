"""What metrics.csv tells, as charts: one per column, one line per run or per setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from macl.experiments.statistics import mean_std
from macl.runs import Run

MOST_POINTS = 400
"""Of a line: more than the eye can tell apart at the width of a page."""


@dataclass(frozen=True)
class Line:
    """One curve. `low` and `high`, where given, bound a band around it."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True)
class Chart:
    """Lines over a common pair of axes."""

    key: str
    """The column of metrics.csv; also the name of the figure's file."""
    title: str
    unit: str
    """Of the y axis."""
    hint: str
    """What to look for."""
    lines: tuple[Line, ...]
    x_label: str = "epoch"


class Meaning(NamedTuple):
    """How a column of metrics.csv is presented."""

    title: str
    unit: str
    hint: str


COLUMNS = {
    "loss": Meaning("Loss", "nats", "What the optimiser minimises."),
    "alignment": Meaning(
        "Alignment A", "mean cosine", "Of positive pairs. The adaptive temperature follows it."
    ),
    "temperature": Meaning(
        "Temperature τₐ", "divides cosines", "Low: hard negatives count most. High: all count."
    ),
    "gradient_scale": Meaning(
        "Gradient scale W̄", "share, 0 to 1", "The share of the gradient that InfoNCE keeps."
    ),
    "uniformity": Meaning(
        "Uniformity", "log mean potential", "Lower: embeddings are spread more evenly."
    ),
    "tolerance": Meaning(
        "Tolerance", "mean cosine", "Of items of equal label; higher keeps them together."
    ),
    "monitor": Meaning(
        "kNN accuracy", "percent", "Within the training data: a trend to watch, not a result."
    ),
    "info_nce": Meaning("InfoNCE", "nats", "The plain loss at the same temperature."),
    "floored": Meaning("Temperature at its floor", "share", "How often the floor held τ up."),
    "lr": Meaning("Learning rate", "per step", "As the schedule set it."),
}
"""In the order of the page. A column that is not named here comes last, under its own name."""

STS_MONITOR = Meaning("STS-B dev", "Spearman × 100", "A trend to watch, not a result.")

POSITION = ("step", "epoch")


def run_charts(run: Run) -> list[Chart]:
    """One chart per column that has something to show."""
    curves = read_curves(run)
    return [
        _chart(key, run, (Line(run.folder.name, *_thinned(*curves[key])),))
        for key in _ordered(curves)
    ]


def comparison_charts(settings: Mapping[str, Sequence[Run]]) -> list[Chart]:
    """One chart per column, one line per setting: the mean over its runs ± one standard deviation.

    Seeds of a setting take the same steps; where one was stopped, the mean ends with it.
    """
    curves = {name: [read_curves(run) for run in runs] for name, runs in settings.items()}
    every = [curve for of_setting in curves.values() for curve in of_setting]
    first = next(runs[0] for runs in settings.values())
    charts = []
    for key in _ordered(dict.fromkeys(key for curve in every for key in curve)):
        found = {n: [c[key] for c in of if key in c] for n, of in curves.items()}
        lines = tuple(_mean_line(name, seeds) for name, seeds in found.items() if seeds)
        charts.append(_chart(key, first, lines))
    return charts


def read_curves(run: Run) -> dict[str, tuple[list[float], list[float]]]:
    """(epochs, values) of every column of metrics.csv; figures that are not finite are left out.

    A column that is zero throughout is left out too: the floor of τ that never acted.
    """
    rows = run.metrics()
    # Every epoch ends with a row, so the last step of the first one is an epoch's length.
    length = max((row["step"] for row in rows if row["epoch"] == 0), default=1.0)
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in POSITION and math.isfinite(value):
                curves.setdefault(key, {})[row["step"] / length] = value
    return {
        key: (list(points), list(points.values()))
        for key, points in curves.items()
        if any(points.values())
    }


def _ordered(keys: Mapping[str, object]) -> list[str]:
    """Known columns in the order of the page, then the others as they come."""
    return [key for key in COLUMNS if key in keys] + [key for key in keys if key not in COLUMNS]


def _chart(key: str, run: Run, lines: tuple[Line, ...]) -> Chart:
    meaning = COLUMNS.get(key, Meaning(key, "", ""))
    if key == "monitor" and getattr(run.recipe.evaluation, "senteval", None) is not None:
        meaning = STS_MONITOR
    return Chart(key, *meaning, lines)


def _mean_line(name: str, seeds: Sequence[tuple[list[float], list[float]]]) -> Line:
    values = [dict(zip(x, y, strict=True)) for x, y in seeds]
    shared = [x for x in values[0] if all(x in others for others in values)]
    x, _ = _thinned(shared, shared)
    means, stds = zip(*(mean_std([v[at] for v in values]) for at in x), strict=True)
    if len(seeds) == 1:
        return Line(name, x, list(means))
    low = [m - s for m, s in zip(means, stds, strict=True)]
    high = [m + s for m, s in zip(means, stds, strict=True)]
    return Line(name, x, list(means), low, high)


def _thinned(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """At most about `MOST_POINTS`, evenly picked, the last among them."""
    stride = -(-len(x) // MOST_POINTS)
    picked = range(len(x) - 1, -1, -stride)[::-1]
    return [x[i] for i in picked], [y[i] for i in picked]
