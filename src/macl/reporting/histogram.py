"""The histogram of τ over training, where each anchor has its own: a column of bins per epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from macl.losses.output import parse_column
from macl.reporting.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, shown, svg, text
from macl.reporting.curves import Chart
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
    bins, most = len(chart.edges) - 1, max(map(max, chart.shares)) or 1.0
    wide = (WIDTH - RIGHT - LEFT) / len(chart.shares)
    high = (HEIGHT - BOTTOM - TOP) / bins
    cell = Markup(
        '<rect class="cell" x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.2f}" '
        'opacity="{:.3f}"><title>{}</title></rect>'
    ).format
    parts = [
        cell(
            LEFT + column * wide,
            HEIGHT - BOTTOM - (place + 1) * high,
            wide,
            high,
            share / most,
            f"τ {shown(chart.edges[place])} to {shown(chart.edges[place + 1])}: {share:.1%}",
        )
        for column, shares in enumerate(chart.shares)
        for place, share in enumerate(shares)
        if share > 0
    ]
    for place in range(0, bins + 1, 2):
        at = HEIGHT - BOTTOM - place * high
        parts.append(text("end", LEFT - 7, at + 3.5, f"{chart.edges[place]:.2g}"))
    for value, at in ((0.0, LEFT), (chart.epochs, WIDTH - RIGHT)):
        parts.append(text("middle", at, HEIGHT - BOTTOM + 15, shown(value)))
    parts.append(text("middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, chart.x_label))
    first, last = (_median(chart, shares) for shares in (chart.shares[0], chart.shares[-1]))
    label = f"{chart.title}. Median τ: from about {shown(first)} to about {shown(last)}."
    return svg(parts, label)


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
