"""The paper's figures, redrawn from our runs as PNG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from macl.experiments.compare import Cell, Setting
from macl.geometry import proposition1, proposition2
from macl.paper.side_by_side import Line
from macl.paper.tables import PaperTable
from macl.reporting.charts import save_figure
from macl.reporting.map import choose_projection, embedding_map
from macl.reporting.templates import PALETTE
from macl.runs import Run

MOST_POINTS = 5000
"""Most points on a map: more would cover each other."""
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def bars(table: PaperTable, lines: Sequence[Line], recipe: str) -> Figure:
    """A group of bars per label of the last axis: the paper on the left, ours on the right.

    On top of each bar is its gain over the first bar of the group. Other overrides that a label is
    run with here are written below it.
    """
    metrics = list(dict.fromkeys(line.metric for line in lines))
    figure = Figure(figsize=(11, 3.8 * len(metrics)), layout="constrained")
    grid = figure.subplots(len(metrics), 2, squeeze=False)
    groups = list(table.axes[[*table.axes][-1]])
    stand_ins = {line.setting[-1][1]: line.run_as for line in lines if line.run_as}
    for metric, (left, right) in zip(metrics, grid, strict=True):
        own = [line for line in lines if line.metric == metric]
        paper = {line.setting: (line.paper.value, 0.0) for line in own if line.paper}
        here = {line.setting: (line.ours.mean, line.ours.std) for line in own if line.ours}
        _group(left, paper, groups, {})
        _group(right, here, groups, stand_ins)
        left.set(title="paper", ylabel=f"{metric} (%), axis cut")
        right.set(title=f"here: {recipe}")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle(f"{table.where} of the paper, and here")
    return figure


def _group(
    axes: Axes, values: dict[Setting, tuple[float, float]], order: list[str], below: dict[str, str]
) -> None:
    """Bars of mean and standard deviation: series by first label, groups by last."""
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for setting, both in values.items():
        series.setdefault(setting[0][1], {})[setting[-1][1]] = both
    groups = [group for group in order if any(group in own for own in series.values())]
    width = 0.8 / len(series)
    base = next(iter(series.values()))
    for number, (name, own) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * width
        places = [groups.index(group) + shift for group in own]
        means, stds = zip(*own.values(), strict=True)
        color = PALETTE[number % len(PALETTE)]
        drawn = axes.bar(places, means, 0.92 * width, yerr=stds, color=color, label=name)
        if number:
            gains = [f"{v - base[g][0]:+.1f}" if g in base else "" for g, (v, _) in own.items()]
            axes.bar_label(drawn, gains, padding=3, fontsize=8, rotation=90)
    heights = [mean for mean, _ in values.values()]
    low, high = min(heights), max(heights)
    margin = max(1.0, 0.4 * (high - low))
    axes.set(xticks=range(len(groups)), ylim=(low - margin, high + margin))
    names = [f"{group}\n{below.get(group, '')}".strip() for group in groups]
    axes.set_xticklabels(names, fontsize="x-small" if below else None)
    axes.set_xlabel(next(iter(values))[-1][0])


def gradient_scale() -> Figure:
    """W against K and against τ, for a positive similarity of 1 and negatives of −1."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    k = torch.logspace(0, 6, 400, dtype=torch.float64)
    for tau, color in zip((0.1, 0.2, 0.3, 0.5, 1.0), PALETTE, strict=False):
        left.plot(k, proposition1(k, temperature=tau), color=color, label=f"τ = {tau:g}")
    temperatures = torch.linspace(0.02, 2, 400, dtype=torch.float64)
    for count, color in zip((16, 64, 256, 4096, 65536), PALETTE, strict=False):
        w = proposition2(temperatures, k=count)
        right.plot(temperatures, w, color=color, label=f"K = {count}")
    left.set(xscale="log", xlabel="number of negatives $K$", ylabel="gradient scale $W_i$")
    right.set(xlabel=r"temperature $\tau$")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
    return figure


def maps(table: PaperTable, cells: Sequence[Cell]) -> Figure:
    """The test embeddings of the first run of each setting in the plane, colored by class."""
    first = {cell.setting: cell for cell in reversed(cells)}
    shown = [first[setting] for setting in dict.fromkeys(cell.setting for cell in cells)]
    figure = Figure(figsize=(5.5 * len(shown), 5.4), layout="constrained")
    for axes, cell in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        placed = embedding_map(Run.open(cell.folder), MOST_POINTS, choose_projection(MOST_POINTS))
        placed.draw(axes)
        axes.set_title(", ".join(label for _, label in cell.setting))
    figure.suptitle(f"{table.where} of the paper, here with {cells[0].recipe['name']}")
    return figure


def draw(
    table: PaperTable, lines: Sequence[Line], cells: Sequence[Cell], folder: Path
) -> list[Path]:
    """Write the figure of a table as NAME.png and NAME.pdf."""
    with matplotlib.rc_context(STYLE):
        if table.figure == "bars":
            figure = bars(table, lines, cells[0].recipe["name"])
        elif table.figure == "map":
            figure = maps(table, cells)
        else:
            figure = gradient_scale()
        return save_figure(figure, folder, table.name, dpi=150)
