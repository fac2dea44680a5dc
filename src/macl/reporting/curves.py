"""The columns of metrics.csv as charts: one chart per column, one line per run or per setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from macl.experiments.statistics import mean_std
from macl.losses.output import is_bin
from macl.reporting.charts import Curves, Heading, Line
from macl.runs import Run

MAX_POINTS = 400
"""Points of a line: more cannot be distinguished at the width of a page."""

PROJECTOR = "projector outputs"
"""What the loss sees."""

BACKBONE = "backbone features"
"""What evaluation and export use."""

COLUMNS = {
    "loss": Heading("Loss", "nats", "The value that training minimizes.", PROJECTOR),
    "alignment": Heading(
        "Alignment A", "mean cosine", "Of positive pairs. MACL's temperature follows it.", PROJECTOR
    ),
    "temperature": Heading(
        "Temperature τₐ", "divides cosines", "Low: hard negatives dominate. High: all count."
    ),
    "temperature_lowest": Heading("Lowest τ in training"),
    "temperature_highest": Heading("Highest τ in training"),
    "temperature_std": Heading(
        "Spread of τ", "standard deviation", "Over the anchors of a batch, each with its own τ."
    ),
    "at_bound": Heading(
        "Temperatures at a bound", "share", "Of anchors. There the bound, not the sample, sets τ."
    ),
    "gradient_scale": Heading(
        "Gradient scale W̄", "0 to 1", "Factor of InfoNCE's gradient, mean of anchors.", PROJECTOR
    ),
    "effective_anchors": Heading(
        "Effective anchors", "share, 0 to 1", "Share of anchors with gradient (ESS).", PROJECTOR
    ),
    "effective_rank": Heading(
        "Effective rank", "dimensions", "RankMe. Falls with collapse.", BACKBONE
    ),
    "alpha_req": Heading(
        "Decay of the spectrum α", "exponent", "Near 0: all directions vary alike.", BACKBONE
    ),
    "uniformity": Heading("Uniformity", "log mean potential", "Lower: spread more evenly."),
    "tolerance": Heading("Tolerance", "mean cosine", "Of items of equal label."),
    "monitor": Heading(
        "kNN accuracy", "percent", "Within the training data: a trend, not a result.", BACKBONE
    ),
    "info_nce": Heading("InfoNCE", "nats", "The plain loss at the same temperature.", PROJECTOR),
    "floored": Heading("Temperature at its floor", "share", "Share of steps in which τ is at it."),
    "lr": Heading("Learning rate", "per step", "As the schedule sets it."),
}
"""Headings, in the order of the page. Other columns come last, under their own names."""


def training_curves(settings: Mapping[str, Sequence[Run]]) -> list[Curves]:
    """One chart per column, one line per setting: the mean over its runs ± one standard deviation.

    Seeds of a setting take the same steps; where one was stopped, the mean ends with it.
    """
    logged = {name: [read_curves(run) for run in runs] for name, runs in settings.items()}
    keys = dict.fromkeys(key for seeds in logged.values() for seed in seeds for key in seed)
    first = next(iter(settings.values()))[0]
    charts = []
    # Known columns in the order of the page, then the others as they come.
    for key in sorted(keys, key=lambda key: [*COLUMNS, key].index(key)):
        heading = heading_of(key)
        if key == "monitor":  # what is monitored depends on the modality
            heading = heading._replace(title=first.modality.monitor_title(first.recipe.evaluation))
        seeds = {name: [c[key] for c in each if key in c] for name, each in logged.items()}
        lines = [_mean_line(name, each) for name, each in seeds.items() if each]
        if drawn := [line for line in lines if line is not None]:
            charts.append(Curves(key, heading, drawn))
    return charts


def read_curves(run: Run) -> dict[str, dict[float, float]]:
    """Epoch → value of every column of metrics.csv; values that are not finite are left out.

    A column that is zero throughout is left out too (a floor of τ that was never reached), and so
    are the bins of τ, which `histogram` draws.
    """
    rows = run.metrics()
    # Every epoch ends with a row, so the last step of the first one is an epoch's length.
    length = max((row["step"] for row in rows if row["epoch"] == 0), default=1.0)
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in ("step", "epoch") and not is_bin(key) and math.isfinite(value):
                curves.setdefault(key, {})[row["step"] / length] = value
    return {key: points for key, points in curves.items() if any(points.values())}


def heading_of(key: str) -> Heading:
    """The text above the chart of a column; an unknown one is shown under its own name."""
    return COLUMNS.get(key, Heading(key.replace("_", " ")))


def _mean_line(name: str, seeds: Sequence[Mapping[float, float]]) -> Line | None:
    """The mean at no more than `MAX_POINTS` of the shared epochs, evenly picked, with the last."""
    shared = [x for x in seeds[0] if all(x in others for others in seeds)]
    if not shared:
        return None
    x = shared[:: -math.ceil(len(shared) / MAX_POINTS)][::-1]
    means, stds = zip(*(mean_std([seed[at] for seed in seeds]) for at in x), strict=True)
    if len(seeds) == 1:
        return Line(name, x, means)
    low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
    return Line(name, x, means, low, high)
