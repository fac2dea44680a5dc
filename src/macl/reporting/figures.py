"""Every figure of a report as PNG and PDF, for papers and slides; see `charts` for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from macl.core.files import atomic_write
from macl.core.shown import one_line
from macl.experiments.rows import Row
from macl.reporting.charts import MARKERS, class_style
from macl.reporting.comparison import setting_name
from macl.reporting.curves import Chart
from macl.reporting.histogram import Histogram, draw_histogram
from macl.reporting.map import EmbeddingMap
from macl.reporting.templates import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LEGEND = 20
"""The largest number of classes with a legend."""

DASHES = ("-", "--", ":", "-.")


def write_figures(
    folder: Path,
    charts: Sequence[Chart] = (),
    shown: EmbeddingMap | None = None,
    scores: dict[str, list[Row]] | None = None,
) -> list[Path]:
    """NAME.png (200 dpi) and NAME.pdf for every chart, the map, and every score compared."""
    files: list[Path] = []
    for name, figure in _figures(charts, shown, scores or {}):
        files += save_figure(figure, folder, name, dpi=200)
    return files


def save_figure(figure: Figure, folder: Path, name: str, dpi: int) -> list[Path]:
    """Write NAME.png and NAME.pdf."""
    files = {kind: folder / f"{name}.{kind}" for kind in ("png", "pdf")}
    for kind, file in files.items():
        atomic_write(file, partial(figure.savefig, format=kind, dpi=dpi))
    return [*files.values()]


def _figures(
    charts: Sequence[Chart], shown: EmbeddingMap | None, scores: dict[str, list[Row]]
) -> Iterator[tuple[str, Figure]]:
    for chart in charts:
        figure = _figure(4.5, 3)
        if isinstance(chart, Histogram):
            draw_histogram(chart, figure)
        else:
            _draw_curves(chart, figure)
        yield chart.key, figure
    for metric, rows in scores.items():
        yield "score-" + metric.replace(" ", "-"), _scores(metric, rows)
    if shown is not None:
        yield "map", _map(shown)


def _plain(name: str) -> str:
    """A name for matplotlib: without formulas, and shown even if it begins with an underscore."""
    text = one_line(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_curves(chart: Chart, figure: Figure) -> None:
    axes = figure.subplots()
    for number, line in enumerate(chart.lines):
        color = PALETTE[number % len(PALETTE)]
        style = DASHES[number // len(PALETTE) % len(DASHES)]
        marker, name = "o" if len(line.x) == 1 else None, _plain(line.name)
        axes.plot(line.x, line.y, style, color=color, label=name, lw=1.5, marker=marker)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, lw=0)
    unit = f" ({chart.unit})" if chart.unit else ""
    axes.set(xlabel=chart.x_label, ylabel=f"{chart.title}{unit}")
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.lines) > 1:
        axes.legend(frameon=False, fontsize="small")


def _scores(metric: str, rows: Sequence[Row]) -> Figure:
    figure = _figure(5.5, 1 + 0.35 * len(rows))
    axes = figure.subplots()
    for number, row in enumerate(rows):
        color = PALETTE[number % len(PALETTE)]
        axes.plot(row.values, [number] * len(row.values), "o", color=color, alpha=0.5, ms=5)
        axes.plot([row.mean], [number], "|", color=color, ms=16, mew=2)
    axes.set_yticks(range(len(rows)), [_plain(setting_name(row.setting)) for row in rows])
    axes.margins(y=0.5 / len(rows))
    axes.invert_yaxis()
    axes.set_xlabel(f"{metric}: every seed, and their mean")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _map(shown: EmbeddingMap) -> Figure:
    figure = _figure(6, 5)
    axes = figure.subplots()
    labels = np.array(shown.labels if shown.labels is not None else [0] * len(shown))
    for label in np.unique(labels):
        color, marker = class_style(int(label))
        x, y = shown.points[labels == label].T
        name = _plain(shown.classes[label]) if shown.classes else None
        axes.scatter(x, y, s=9, lw=0, color=color, marker=MARKERS[marker], label=name)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_xlabel(f"{shown.projection.value.upper()} of {len(shown):,} items: {shown.which}")
    axes.spines[:].set_visible(False)
    if 0 < len(shown.classes) <= MAX_LEGEND:
        figure.legend(loc="outside right center", frameon=False, markerscale=2)
    return figure
