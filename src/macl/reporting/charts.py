"""Charts: inline SVG on the page, matplotlib's figures on file.

The SVG is not matplotlib's: colors come from the style sheet (light, dark, print), values are read
off under the pointer, and several charts share one document, in which matplotlib's ids and its
global style element would collide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from macl.experiments.rows import Row
from macl.reporting.figures import literal, new_figure
from macl.reporting.templates import PALETTE, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS, UP = (46, 348), (174, 10)
"""Ends of the axes of a chart, in the units of charts.html."""

DASHES = ("-", "--", ":", "-.")


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
        from matplotlib.ticker import MaxNLocator

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

    def svg(self) -> Markup:
        """As an <svg>; its axes are in data-x and data-y for the read-out."""
        xs = [x for line in self.lines for x in line.x]
        ys = [y for line in self.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
        across, up = fit_axis([0.0, *xs], *ACROSS), fit_axis(ys, *UP, margin=0.06)
        return drawn("curves", chart=self, across=across, up=up)

    def figure(self) -> Figure:
        """The same by matplotlib."""
        figure = new_figure(4.5, 3)
        axes = figure.subplots()
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
        return figure


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

    def svg(self) -> Markup:
        """As an <svg>."""
        across = fit_axis([v for row in self.rows for v in row.values], 14, 466, margin=0.06)
        named = [(setting_name(row.setting), row) for row in self.rows]
        return drawn("dots", metric=self.metric, named=named, across=across)

    def figure(self) -> Figure:
        """The same by matplotlib."""
        figure = new_figure(5.5, 1 + 0.35 * len(self.rows))
        axes = figure.subplots()
        for number, (row, color) in enumerate(zip(self.rows, cycle(PALETTE), strict=False)):
            axes.plot(row.values, [number] * len(row.values), "o", color=color, alpha=0.5, ms=5)
            axes.plot([row.mean], [number], "|", color=color, ms=16, mew=2)
        names = [literal(setting_name(row.setting)) for row in self.rows]
        axes.set_yticks(range(len(self.rows)), names)
        axes.margins(y=0.5 / len(self.rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"{self.metric}: every seed, and their mean")
        axes.spines[["top", "right", "left"]].set_visible(False)
        return figure
