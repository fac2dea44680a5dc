"""Charts as inline SVG for the page.

Not matplotlib's SVG, which `figures` uses for PNG and PDF: here colors come from the style sheet
(light, dark, print), values are read off under the pointer, and several charts share one document,
in which matplotlib's ids and its global style element would collide. Both draw the same `Chart`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from macl.experiments.rows import Row
from macl.reporting.comparison import setting_name
from macl.reporting.curves import Chart
from macl.reporting.templates import PALETTE, drawn

ACROSS, UP = (46, 348), (174, 10)
"""Ends of the axes of a chart, in the units of charts.html."""

MARKERS = ("o", "s", "^", "D")
"""Names of matplotlib; the page draws the same shapes."""


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
    """An axis over the range of `values`, extended by a share `margin` of it at both ends.

    Equal values get a range around them.
    """
    low, high = min(values), max(values)
    extra = (high - low) * margin or (abs(high) * 0.05 or 0.5) * (low == high)
    return Axis(low - extra, high + extra, start, end)


def class_style(number: int) -> tuple[str, int]:
    """The color and the marker of class `number`: ten colors, then the next marker."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % len(MARKERS)


def curve_svg(chart: Chart) -> Markup:
    """A chart as an <svg>; its axes are in data-x and data-y for the read-out."""
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    across, up = fit_axis([0.0, *xs], *ACROSS), fit_axis(ys, *UP, margin=0.06)
    return drawn("curves", chart=chart, across=across, up=up)


def dots_svg(metric: str, rows: Sequence[Row]) -> Markup:
    """A dot per seed and a bar for their mean, one line per setting."""
    across = fit_axis([v for row in rows for v in row.values], 14, 466, margin=0.06)
    named = [(setting_name(row.setting), row) for row in rows]
    return drawn("dots", metric=metric, named=named, across=across)
