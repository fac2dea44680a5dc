"""The histogram of τ over training, where each anchor has its own: a column of bins per epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from markupsafe import Markup

from macl.losses.output import parse_column
from macl.reporting.charts import ACROSS, UP, Axis, Heading
from macl.reporting.figures import new_figure
from macl.reporting.templates import drawn, shown
from macl.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 60
"""Columns of the image at most; each is a mean over its part of the training."""


@dataclass(frozen=True)
class Histogram:
    """Shares of anchors by τ, over the training."""

    epochs: float
    """The length of the training."""
    edges: tuple[float, ...]
    """Of the bins of τ, ascending."""
    shares: tuple[tuple[float, ...], ...]
    """For each part of the training, the share of anchors in each bin."""

    key: ClassVar[str] = "temperature-histogram"
    heading: ClassVar[Heading] = Heading(
        "Temperatures of the anchors",
        "τ, logarithmic",
        "The darker, the more anchors have this τ.",
    )

    @classmethod
    def read(cls, run: Run) -> Histogram | None:
        """The histogram in the run's metrics.csv; None where all anchors have one τ."""
        logged = run.metrics()
        names = dict.fromkeys(name for row in logged for name in row)
        bins = sorted((bounds, name) for name in names if (bounds := parse_column(name)))
        if not bins:
            return None
        rows = [[row.get(name, 0.0) for _, name in bins] for row in logged if bins[0][1] in row]
        parts = np.array_split(np.array(rows), min(COLUMNS, len(rows)))
        edges = (bins[0][0][0], *(high for (_, high), _ in bins))
        shares = tuple(tuple(part.mean(0).tolist()) for part in parts)
        return cls(float(logged[-1]["epoch"]) + 1, edges, shares)

    def svg(self) -> Markup:
        """As an <svg>; a bin's opacity is its share of the fullest bin."""
        first, last = (shown(self._median(self.shares[end])) for end in (0, -1))
        label = f"{self.heading.title}. Median τ: from about {first} to about {last}."
        across, up = Axis(0, len(self.shares), *ACROSS), Axis(0, len(self.edges) - 1, *UP)
        return drawn("histogram", chart=self, across=across, up=up, label=label)

    def figure(self) -> Figure:
        """The same by matplotlib."""
        figure = new_figure(4.5, 3)
        axes = figure.subplots()
        across = np.linspace(0, self.epochs, len(self.shares) + 1)
        mesh = axes.pcolormesh(across, self.edges, np.array(self.shares).T, cmap="Blues")
        axes.set(yscale="log", xlabel="epoch", ylabel="τ of the anchors")
        figure.colorbar(mesh, label="share of anchors")
        return figure

    def _median(self, shares: tuple[float, ...]) -> float:
        """The lower edge of the bin that holds the median."""
        place = int(np.searchsorted(np.cumsum(shares), 0.5 * sum(shares)))
        return self.edges[min(place, len(shares) - 1)]
