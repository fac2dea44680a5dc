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

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 36

PALETTE = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6",
    "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff's ten (arXiv:2107.02270), found by a survey and a model of color-vision deficiency."""

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


def svg(
    parts: Iterable[Markup], label: str, size: tuple[int, int] = (WIDTH, HEIGHT), **data: object
) -> Markup:
    """An <svg> with a description for screen readers and `data-` attributes for the script."""
    attributes = [Markup(' data-{}="{}"').format(name, value) for name, value in data.items()]
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"{}>{}</svg>'
    ).format(*size, label, Markup("").join(attributes), Markup("").join(parts))


def text(where: str, x: float, y: float, words: str) -> Markup:
    """Text in a chart; `where` has its CSS classes: start, middle or end."""
    return Markup('<text class="tick {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        where, x, y, words
    )


def style_of(number: int) -> str:
    """The CSS classes of line `number`: its color and its dashes."""
    return f"c{number % len(PALETTE)} d{number // len(PALETTE) % 4}"


def class_style(number: int) -> tuple[str, int]:
    """The color and the marker of class `number`: ten colors, then the next marker."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % len(MARKERS)


def shown(value: float) -> str:
    """A number as axes and texts show it."""
    return f"{value:.4g}".replace("-", "−")


def curve_svg(chart: Chart) -> Markup:
    """A chart as an <svg>; its axes are in data-x and data-y for the read-out."""
    lines = [(line, style_of(number)) for number, line in enumerate(chart.lines)]
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    across = fit_axis([0.0, *xs], LEFT, WIDTH - RIGHT)
    up = fit_axis(ys, HEIGHT - BOTTOM, TOP, margin=0.06)
    rule = Markup('<path class="rule" d="M{} {:.1f}H{}"/>').format
    band = Markup('<polygon class="band {}" points="{}"/>').format
    dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"/>').format
    curve = Markup('<polyline class="line {}" data-name="{}" points="{}"/>').format
    parts = [rule(LEFT, up(t), WIDTH - RIGHT) for t in up.ticks()]
    parts += [text("end", LEFT - 7, up(t) + 3.5, shown(t)) for t in up.ticks()]
    parts += [text("middle", across(t), HEIGHT - BOTTOM + 15, shown(t)) for t in across.ticks()]
    parts.append(text("middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, chart.x_label))
    for line, style in lines:
        if line.low is not None and line.high is not None:
            around = across.points(up, [*line.x, *line.x[::-1]], [*line.high, *line.low[::-1]])
            parts.append(band(style, around))
    for line, style in lines:
        points = across.points(up, line.x, line.y)
        alone = len(line.x) == 1
        parts.append(dot(style, *points.split(",")) if alone else curve(style, line.name, points))
    ends = [f"{line.name}: from {shown(line.y[0])} to {shown(line.y[-1])}" for line in chart.lines]
    label = f"{chart.title} by {chart.x_label}. {'; '.join(ends)}."
    return svg(parts, label, x=across, y=up, across=chart.x_label)


def dots_svg(metric: str, rows: Sequence[Row]) -> Markup:
    """A dot per seed and a bar for their mean, one line per setting."""
    width, step, below = 480, 38, 34
    height = step * len(rows) + below
    across = fit_axis([v for row in rows for v in row.values], 14, width - 14, margin=0.06)
    rule = Markup('<path class="rule" d="M{:.1f} 4V{}"/>').format
    dot = Markup('<circle class="dot seed {}" cx="{:.1f}" cy="{}" r="4"/>').format
    bar = Markup('<path class="line mean {}" d="M{:.1f} {}v14"/>').format
    parts = [rule(across(t), height - below) for t in across.ticks()]
    parts += [text("middle", across(t), height - below + 15, shown(t)) for t in across.ticks()]
    parts.append(text("middle", width / 2, height - 4, metric))
    for number, row in enumerate(rows):
        y, style = step * number + 26, style_of(number)
        parts.append(text("start name", 14, y - 11, setting_name(row.setting)))
        parts += [dot(style, across(value), y) for value in row.values]
        parts.append(bar(style, across(row.mean), y - 7))
    means = "; ".join(f"{setting_name(row.setting)}: {shown(row.mean)}" for row in rows)
    return svg(parts, f"{metric}. {means}.", (width, height))
