"""Charts: inline SVG on the page, matplotlib's figures on file.

The SVG is not matplotlib's: its colors come from the style sheet (light, dark, print), and values
are read off under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from macl.core.files import atomic_write
from macl.core.shown import one_line
from macl.experiments.rows import Row
from macl.losses.output import parse_column
from macl.reporting.templates import PALETTE, drawn, shown
from macl.runs import Run

ACROSS, UP = (46, 348), (174, 10)
"""Ends of the axes of a chart, in the units of charts.html."""

DASHES = ("-", "--", ":", "-.")

COLUMNS = 60
"""Columns of a histogram over training at most; each is a mean over its part."""


@dataclass(frozen=True)
class Axis:
    """A linear map from values `low` … `high` to positions `start` … `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of `value`, in SVG units."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def __str__(self) -> str:
        """As the page's script reads it."""
        return f"{self.low:.8g} {self.high:.8g} {self.start} {self.end}"

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the range of the axis."""
        values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(v) for v in values if self.low <= v <= self.high]

    def points(self, up: Axis, x: Iterable[float], y: Iterable[float]) -> str:
        """Points of a line whose x is on this axis and whose y is on `up`."""
        return " ".join(f"{self(a):.1f},{up(b):.1f}" for a, b in zip(x, y, strict=True))


def fit_axis(values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Axis:
    """An axis over `values`, extended by a share `margin` at both ends, or around equal values."""
    low, high = min(values), max(values)
    even = math.isclose(low, high, rel_tol=1e-6)  # means of equal values differ by rounding
    extra = (abs(high) * 0.05 or 0.5) if even else (high - low) * margin
    return Axis(low - extra, high + extra, start, end)


class Heading(NamedTuple):
    """The text above a chart."""

    title: str
    unit: str = ""
    """Of the y axis."""
    hint: str = ""
    """How to read it."""
    measured_on: str = ""
    """The vectors it is computed from; empty where it is not computed from vectors."""


class Line(NamedTuple):
    """One curve. `low` and `high`, where given, bound a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Curves:
    """Lines over the epochs."""

    key: str
    """The column of metrics.csv; also the name of the figure's file."""
    heading: Heading
    lines: Sequence[Line]

    size: ClassVar = (4.5, 3)

    def svg(self) -> Markup:
        """As an <svg>; its axes are in data-x and data-y for the read-out."""
        xs = [x for line in self.lines for x in line.x]
        ys = [y for line in self.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
        across, up = fit_axis([0.0, *xs], *ACROSS), fit_axis(ys, *UP, margin=0.06)
        return drawn("curves", chart=self, across=across, up=up)

    def draw(self, axes: Axes) -> None:
        """The same by matplotlib."""
        styles = cycle(product(DASHES, PALETTE))
        for line, (dashes, color) in zip(self.lines, styles, strict=False):
            marker, name = "o" if len(line.x) == 1 else None, literal(line.name)
            axes.plot(line.x, line.y, dashes, color=color, label=name, lw=1.5, marker=marker)
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, lw=0)
        unit = f" ({self.heading.unit})" if self.heading.unit else ""
        axes.set(xlabel="epoch", ylabel=f"{self.heading.title}{unit}")
        axes.spines[["top", "right"]].set_visible(False)
        if len(self.lines) > 1:
            axes.legend(frameon=False, fontsize="small")


def setting_name(setting: Mapping[str, str]) -> str:
    """ "loss=macl, batch_size=64"."""
    return ", ".join(f"{key}={value}" for key, value in setting.items()) or "all runs"


@dataclass(frozen=True)
class Dots:
    """A score: a dot per seed and a bar for their mean, one line per setting."""

    metric: str
    rows: Sequence[Row]

    @property
    def key(self) -> str:
        """The name of the figure's file."""
        return "score-" + self.metric.replace(" ", "-")

    @property
    def size(self) -> tuple[float, float]:
        """A line for each setting."""
        return 5.5, 1 + 0.35 * len(self.rows)

    def svg(self) -> Markup:
        """As an <svg>."""
        across = fit_axis([v for row in self.rows for v in row.values], 14, 466, margin=0.06)
        named = [(setting_name(row.setting), row) for row in self.rows]
        return drawn("dots", metric=self.metric, named=named, across=across)

    def draw(self, axes: Axes) -> None:
        """The same by matplotlib."""
        for number, (row, color) in enumerate(zip(self.rows, cycle(PALETTE), strict=False)):
            axes.plot(row.values, [number] * len(row.values), "o", color=color, alpha=0.5, ms=5)
            axes.plot([row.mean], [number], "|", color=color, ms=16, mew=2)
        names = [literal(setting_name(row.setting)) for row in self.rows]
        axes.set_yticks(range(len(self.rows)), names)
        axes.margins(y=0.5 / len(self.rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"{self.metric}: every seed, and their mean")
        axes.spines[["top", "right", "left"]].set_visible(False)


@dataclass(frozen=True)
class Histogram:
    """Shares of anchors by τ over the training, where each anchor has its own."""

    epochs: float
    """The length of the training."""
    edges: tuple[float, ...]
    """Of the bins of τ, ascending."""
    shares: tuple[tuple[float, ...], ...]
    """For each part of the training, the share of anchors in each bin."""

    key: ClassVar = "temperature-histogram"
    size: ClassVar = (4.5, 3)
    heading: ClassVar = Heading(
        "Temperatures of the anchors", "τ, logarithmic", "The darker, the more anchors have this τ."
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
        sums = (np.cumsum(self.shares[end]) for end in (0, -1))
        first, last = (shown(self.edges[np.searchsorted(each, each[-1] / 2)]) for each in sums)
        label = f"{self.heading.title}. Median τ: from about {first} to about {last}."
        across, up = Axis(0, len(self.shares), *ACROSS), Axis(0, len(self.edges) - 1, *UP)
        return drawn("histogram", chart=self, across=across, up=up, label=label)

    def draw(self, axes: Axes) -> None:
        """The same by matplotlib."""
        across = np.linspace(0, self.epochs, len(self.shares) + 1)
        mesh = axes.pcolormesh(across, self.edges, np.array(self.shares).T, cmap="Blues")
        axes.set(yscale="log", xlabel="epoch", ylabel="τ of the anchors")
        axes.figure.colorbar(mesh, label="share of anchors")


def save_figure(figure: Figure, folder: Path, name: str, dpi: int) -> list[Path]:
    """Write NAME.png and NAME.pdf."""
    files = {kind: folder / f"{name}.{kind}" for kind in ("png", "pdf")}
    for kind, file in files.items():
        atomic_write(file, partial(figure.savefig, format=kind, dpi=dpi))
    return [*files.values()]


def literal(name: str) -> str:
    """A name for matplotlib: without formulas, and shown even if it begins with an underscore."""
    text = one_line(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
