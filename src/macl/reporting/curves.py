"""The columns of metrics.csv as charts: one chart per column, one line per run or per setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from macl.experiments.statistics import mean_std
from macl.losses.output import is_bin
from macl.runs import Run

MAX_POINTS = 400
"""Points of a line: more cannot be distinguished at the width of a page."""


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
    """How to read it."""
    lines: tuple[Line, ...]
    measured_on: str = ""
    """The vectors it is computed from; empty where it is not computed from vectors."""
    x_label: str = "epoch"


class Column(NamedTuple):
    """How a column of metrics.csv is presented; see `Chart`."""

    title: str
    unit: str = ""
    hint: str = ""
    measured_on: str = ""


PROJECTOR = "projector outputs"
"""What the loss sees."""

BACKBONE = "backbone features"
"""What evaluation and export use."""

COLUMNS = {
    "loss": Column("Loss", "nats", "The value that training minimizes.", PROJECTOR),
    "alignment": Column(
        "Alignment A", "mean cosine", "Of positive pairs. MACL's temperature follows it.", PROJECTOR
    ),
    "temperature": Column(
        "Temperature τₐ", "divides cosines", "Low: hard negatives dominate. High: all count."
    ),
    "temperature_lowest": Column("Lowest τ in training"),
    "temperature_highest": Column("Highest τ in training"),
    "temperature_std": Column(
        "Spread of τ", "standard deviation", "Over the anchors of a batch, each with its own τ."
    ),
    "at_bound": Column(
        "Temperatures at a bound", "share", "Of anchors. There the bound, not the sample, sets τ."
    ),
    "gradient_scale": Column(
        "Gradient scale W̄", "0 to 1", "Factor of InfoNCE's gradient, mean of anchors.", PROJECTOR
    ),
    "effective_anchors": Column(
        "Effective anchors", "share, 0 to 1", "Share of anchors with gradient (ESS).", PROJECTOR
    ),
    "effective_rank": Column(
        "Effective rank", "dimensions", "RankMe. Falls with collapse.", BACKBONE
    ),
    "alpha_req": Column(
        "Decay of the spectrum α", "exponent", "Near 0: all directions vary alike.", BACKBONE
    ),
    "uniformity": Column("Uniformity", "log mean potential", "Lower: spread more evenly."),
    "tolerance": Column("Tolerance", "mean cosine", "Of items of equal label."),
    "monitor": Column(
        "kNN accuracy", "percent", "Within the training data: a trend, not a result.", BACKBONE
    ),
    "info_nce": Column("InfoNCE", "nats", "The plain loss at the same temperature.", PROJECTOR),
    "floored": Column("Temperature at its floor", "share", "Share of steps in which τ is at it."),
    "lr": Column("Learning rate", "per step", "As the schedule sets it."),
}
"""Labels, in the order of the page. A column that is not listed comes last, under its own name."""

POSITION = ("step", "epoch")


def run_charts(run: Run) -> list[Chart]:
    """One chart per column of the run's metrics.csv that has values."""
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
    keys = dict.fromkeys(key for seeds in curves.values() for seed in seeds for key in seed)
    first = next(runs[0] for runs in settings.values())
    charts = []
    for key in _ordered(keys):
        logged = {name: [c[key] for c in seeds if key in c] for name, seeds in curves.items()}
        lines = tuple(_mean_line(name, seeds) for name, seeds in logged.items() if seeds)
        charts.append(_chart(key, first, lines))
    return charts


def read_curves(run: Run) -> dict[str, tuple[list[float], list[float]]]:
    """(epochs, values) of every column of metrics.csv; values that are not finite are left out.

    A column that is zero throughout is left out too (a floor of τ that was never reached), and so
    are the bins of τ, which `histogram` draws.
    """
    rows = run.metrics()
    # Every epoch ends with a row, so the last step of the first one is an epoch's length.
    length = max((row["step"] for row in rows if row["epoch"] == 0), default=1.0)
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in POSITION and not is_bin(key) and math.isfinite(value):
                curves.setdefault(key, {})[row["step"] / length] = value
    return {
        key: (list(points), list(points.values()))
        for key, points in curves.items()
        if any(points.values())
    }


def _ordered(keys: Mapping[str, object]) -> list[str]:
    """Known columns in the order of the page, then the others as they come."""
    return [key for key in COLUMNS if key in keys] + [key for key in keys if key not in COLUMNS]


def column(key: str) -> Column:
    """The presentation of a column; an unknown one is shown under its own name."""
    return COLUMNS.get(key, Column(key.replace("_", " ")))


def _chart(key: str, run: Run, lines: tuple[Line, ...]) -> Chart:
    shown = column(key)
    if key == "monitor":  # what is monitored depends on the modality
        shown = shown._replace(title=run.modality.monitor_title(run.recipe.evaluation))
    return Chart(key, shown.title, shown.unit, shown.hint, lines, shown.measured_on)


def _mean_line(name: str, seeds: Sequence[tuple[list[float], list[float]]]) -> Line:
    values = [dict(zip(x, y, strict=True)) for x, y in seeds]
    shared = [x for x in values[0] if all(x in others for others in values)]
    x, _ = _thinned(shared, shared)
    means, stds = zip(*(mean_std([v[at] for v in values]) for at in x), strict=True)
    if len(seeds) == 1:
        return Line(name, x, list(means))
    low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
    return Line(name, x, list(means), low, high)


def _thinned(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """At most about `MAX_POINTS`, evenly picked, the last among them."""
    stride = -(-len(x) // MAX_POINTS)
    picked = range(len(x) - 1, -1, -stride)[::-1]
    return [x[i] for i in picked], [y[i] for i in picked]
