"""Charts as inline SVG for the page.

Not matplotlib's SVG, which `figures` uses for PNG and PDF: here colours come from the style sheet
(light, dark, print), values are read off under the pointer, and several charts share one document,
in which matplotlib's ids and its global style element would collide. Both draw the same `Chart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from macl.experiments.rows import Row
from macl.reporting.comparison import setting_name
from macl.reporting.curves import Chart, Line
from macl.reporting.palette import PALETTE

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 36


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

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the range of the axis."""
        from matplotlib.ticker import MaxNLocator

        values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(v) for v in values if self.low <= v <= self.high]


def fit_axis(values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Axis:
    """An axis over the range of `values`, extended by a share `margin` of it at both ends.

    Equal values get a range around them.
    """
    low, high = min(values), max(values)
    extra = (high - low) * margin or (abs(high) * 0.05 or 0.5) * (low == high)
    return Axis(low - extra, high + extra, start, end)


def curve_svg(chart: Chart) -> Markup:
    """A chart as an <svg>; its lines carry their range in data-x and data-y for the read-out."""
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    across = fit_axis([0.0, *xs], LEFT, WIDTH - RIGHT)
    up = fit_axis(ys, HEIGHT - BOTTOM, TOP, margin=0.06)
    parts = [_frame(across, up, chart.x_label)]
    for number, line in enumerate(chart.lines):
        if line.low is not None and line.high is not None:
            parts.append(_band(line, across, up, number))
    for number, line in enumerate(chart.lines):
        parts.append(_polyline(line, across, up, number))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" data-x="{}" data-y="{}"'
        ' data-across="{}">{}</svg>'
    ).format(
        *(WIDTH, HEIGHT, _description(chart), _range(across), _range(up), chart.x_label),
        Markup("").join(parts),
    )


def style_of(number: int) -> str:
    """The CSS classes of line `number`: its colour and its dashes."""
    return f"c{number % len(PALETTE)} d{number // len(PALETTE) % 4}"


def shown(value: float) -> str:
    """A number as axes and texts show it."""
    return f"{value:.4g}".replace("-", "−")


def _frame(across: Axis, up: Axis, x_label: str) -> Markup:
    across_ticks, up_ticks = across.ticks(), up.ticks()
    rules = Markup("").join(
        Markup('<path class="rule" d="M{} {:.1f}H{}"/>').format(LEFT, up(t), WIDTH - RIGHT)
        for t in up_ticks
    )
    write = partial(Markup('<text class="tick {}" x="{:.1f}" y="{:.1f}">{}</text>').format)
    left = (write("end", LEFT - 7, up(t) + 3.5, shown(t)) for t in up_ticks)
    below = (write("middle", across(t), HEIGHT - BOTTOM + 15, shown(t)) for t in across_ticks)
    label = write("middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label)
    return rules + Markup("").join((*left, *below, label))


def _polyline(line: Line, across: Axis, up: Axis, number: int) -> Markup:
    points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
    if len(line.x) == 1:
        x, y = points.split(",")
        return Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"/>').format(
            style_of(number), x, y
        )
    return Markup('<polyline class="line {}" data-name="{}" points="{}"/>').format(
        style_of(number), line.name, points
    )


def _band(line: Line, across: Axis, up: Axis, number: int) -> Markup:
    upper = [(x, y) for x, y in zip(line.x, line.high or (), strict=True)]
    lower = [(x, y) for x, y in zip(line.x, line.low or (), strict=True)]
    points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in (*upper, *reversed(lower)))
    return Markup('<polygon class="band {}" points="{}"/>').format(style_of(number), points)


def _range(axis: Axis) -> str:
    return f"{axis.low:.8g} {axis.high:.8g} {axis.start} {axis.end}"


def _description(chart: Chart) -> str:
    """The first and last value of each line as text, for screen readers."""
    ends = [f"{line.name}: from {shown(line.y[0])} to {shown(line.y[-1])}" for line in chart.lines]
    return f"{chart.title} by {chart.x_label}. {'; '.join(ends)}."


def dots_svg(metric: str, rows: Sequence[Row]) -> Markup:
    """A dot per seed and a bar for their mean, one line per setting."""
    width, step, below = 480, 38, 34
    height = step * len(rows) + below
    across = fit_axis([v for row in rows for v in row.values], 14, width - 14, margin=0.06)
    write = Markup('<text class="tick {}" x="{:.1f}" y="{:.1f}">{}</text>').format
    parts = []
    for tick in across.ticks():
        parts.append(
            Markup('<path class="rule" d="M{0:.1f} 4V{1}"/>').format(across(tick), height - below)
        )
        parts.append(write("middle", across(tick), height - below + 15, shown(tick)))
    parts.append(write("middle", width / 2, height - 4, metric))
    for number, row in enumerate(rows):
        y = step * number + 26
        parts.append(write("start name", 14, y - 11, setting_name(row.setting)))
        parts += [
            Markup('<circle class="dot seed {}" cx="{:.1f}" cy="{}" r="4"/>').format(
                style_of(number), across(value), y
            )
            for value in row.values
        ]
        parts.append(
            Markup('<path class="line mean {}" d="M{:.1f} {}v14"/>').format(
                style_of(number), across(row.mean), y - 7
            )
        )
    means = "; ".join(f"{setting_name(row.setting)}: {shown(row.mean)}" for row in rows)
    frame = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return frame.format(width, height, f"{metric}. {means}.", Markup("").join(parts))
