"""The histogram of τ over training, where each anchor has its own: a column of bins per epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from macl.losses.output import parse_column
from macl.reporting.charts import ACROSS, UP, Axis
from macl.reporting.curves import Chart
from macl.reporting.templates import drawn, shown
from macl.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 60
"""Columns of the image at most; each is a mean over its part of the training."""


@dataclass(frozen=True)
class Histogram(Chart):
    """Shares of anchors by τ, over the training."""

    epochs: float = 0.0
    """The length of the training."""
    edges: tuple[float, ...] = ()
    """Of the bins of τ, ascending."""
    shares: tuple[tuple[float, ...], ...] = ()
    """For each part of the training, the share of anchors in each bin."""


def temperature_histogram(run: Run) -> Histogram | None:
    """The histogram in the run's metrics.csv; None where all anchors have one τ."""
    logged = run.metrics()
    names = dict.fromkeys(name for row in logged for name in row)
    bins = sorted((bounds, name) for name in names if (bounds := parse_column(name)) is not None)
    if not bins:
        return None
    rows = [[row.get(name, 0.0) for _, name in bins] for row in logged if bins[0][1] in row]
    parts = np.array_split(np.array(rows), min(COLUMNS, len(rows)))
    edges = (bins[0][0][0], *(high for (_, high), _ in bins))
    return Histogram(
        key="temperature-histogram",
        title="Temperatures of the anchors",
        unit="τ, logarithmic",
        hint="The darker, the more anchors have this τ.",
        lines=(),
        epochs=float(logged[-1]["epoch"]) + 1,
        edges=edges,
        shares=tuple(tuple(part.mean(0).tolist()) for part in parts),
    )


def histogram_svg(chart: Histogram) -> Markup:
    """The histogram as an <svg>; a bin's opacity is its share of the fullest bin."""
    first, last = (shown(_median(chart, shares)) for shares in (chart.shares[0], chart.shares[-1]))
    label = f"{chart.title}. Median τ: from about {first} to about {last}."
    across, up = Axis(0, len(chart.shares), *ACROSS), Axis(0, len(chart.edges) - 1, *UP)
    return drawn("histogram", chart=chart, across=across, up=up, label=label)


def draw_histogram(chart: Histogram, figure: Figure) -> None:
    """The same with matplotlib."""
    axes = figure.subplots()
    across = np.linspace(0, chart.epochs, len(chart.shares) + 1)
    mesh = axes.pcolormesh(across, chart.edges, np.array(chart.shares).T, cmap="Blues")
    axes.set(yscale="log", xlabel=chart.x_label, ylabel="τ of the anchors")
    figure.colorbar(mesh, label="share of anchors")


def _median(chart: Histogram, shares: tuple[float, ...]) -> float:
    """The lower edge of the bin that holds the median."""
    place = int(np.searchsorted(np.cumsum(shares), 0.5 * sum(shares)))
    return chart.edges[min(place, len(shares) - 1)]
