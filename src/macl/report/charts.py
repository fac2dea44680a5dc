"""Charts as inline SVG: they print, scale, and take their colours from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from macl.experiments.compare import Row
from macl.report.comparison import setting_name
from macl.report.curves import Chart, Line

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 36
COLOURS = 10
"""Colours of the palette; after them the dashes change."""


@dataclass(frozen=True)
class Axis:
    """From values to positions along `start` … `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where `value` lies, in SVG units."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the axis."""
        from matplotlib.ticker import MaxNLocator

        values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(v) for v in values if self.low <= v <= self.high]


def fitting(values: Sequence[float], start: float, end: float, room: float = 0.0) -> Axis:
    """An axis that spans `values`, with a share of `room` at both ends; never of length 0."""
    low, high = min(values), max(values)
    margin = (high - low) * room or (abs(high) * 0.05 or 0.5) * (low == high)
    return Axis(low - margin, high + margin, start, end)


def curve_svg(chart: Chart) -> Markup:
    """A chart as an <svg>; its lines carry their range in data-x and data-y for the read-out."""
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    across = fitting([0.0, *xs], LEFT, WIDTH - RIGHT)
    up = fitting(ys, HEIGHT - BOTTOM, TOP, room=0.06)
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
        *(WIDTH, HEIGHT, _told(chart), _range(across), _range(up), chart.x_label),
        Markup("").join(parts),
    )


def style_of(number: int) -> str:
    """The classes that colour and dash line `number`."""
    return f"c{number % COLOURS} d{number // COLOURS % 4}"


def shown(value: float) -> str:
    """A number as an axis or a sentence shows it."""
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


def _told(chart: Chart) -> str:
    """The chart in words, for those who do not see it."""
    ends = [f"{line.name}: from {shown(line.y[0])} to {shown(line.y[-1])}" for line in chart.lines]
    return f"{chart.title} by {chart.x_label}. {'; '.join(ends)}."


def dots_svg(metric: str, rows: Sequence[Row]) -> Markup:
    """Every seed of every setting as a dot, and their mean as a bar: what the table sums up."""
    width, step, below = 480, 38, 34
    height = step * len(rows) + below
    across = fitting([v for row in rows for v in row.values], 14, width - 14, room=0.06)
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
    told = "; ".join(f"{setting_name(row.setting)}: {shown(row.mean)}" for row in rows)
    frame = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return frame.format(width, height, f"{metric}. {told}.", Markup("").join(parts))
