"""Draws panels: for a page as SVG in the page's own colors, for a file as PNG."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from panels import Panel

# Okabe & Ito's palette, distinguishable with any color vision and on light and dark ground
COLORS = {
    "own": "#D55E00",
    "1": "#0072B2",
    "2": "#009E73",
    "3": "#CC79A7",
    "4": "#56B4E9",
    "gray": "#8a8a8a",
}
INK = "#010203"
"""Stands for the page's text color until the SVG is written."""
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 2.2,
    "legend.frameon": False,
    "savefig.dpi": 110,
    "svg.fonttype": "none",
    "svg.hashsalt": "macl",
}


def to_html(panels: list[Panel], alt: str) -> str:
    """A figure element with one SVG for each panel; narrow screens show them below each other."""
    drawn = "".join(_svg(panel) for panel in panels)
    label = html.escape(alt, quote=True)
    return f'<figure class="plot" role="img" aria-label="{label}">{drawn}</figure>'


def to_png(panels: list[Panel], path: Path) -> None:
    """Write the panels side by side; the file carries the digest of their numbers."""
    with plt.rc_context({**STYLE, "figure.facecolor": "white"}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(5 * len(panels), 4.3), layout="constrained"
        )
        shared = all(panel.numbers().keys() == panels[0].numbers().keys() for panel in panels)
        for each, panel in zip(axes, panels, strict=True):
            _draw(each, panel, legend=not shared)
        if shared:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.savefig(
            path, metadata={"Software": None, "Data": digest([panel.numbers() for panel in panels])}
        )
        plt.close(figure)


def digest(numbers: object) -> str:
    """A short text that changes with the numbers of a figure, as figures/data.json has them."""
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]


def _svg(panel: Panel) -> str:
    ink = {
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with plt.rc_context({**STYLE, **ink}):
        figure, axes = plt.subplots(figsize=(4.4, 3.4), layout="constrained")
        _draw(axes, panel)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    # Identifiers are unique within a drawing only.
    prefix = re.sub(r"\W", "", panel.title)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}-", svg)
    # A blank line would end the block of HTML in Markdown.
    return re.sub(r"\s*\n\s*", " ", svg)


def _draw(axes: Axes, panel: Panel, legend: bool = True) -> None:
    for each in panel.lines:
        style = (0, (2.5, 2.5)) if each.dashed else "-"
        label = None if each.label == "0" else each.label
        axes.plot(each.x, each.y, color=COLORS[each.role], label=label, ls=style, lw=each.width)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.y_range:
        axes.set_ylim(*panel.y_range)
    shown = [each for each in panel.lines if each.label != "0"]
    if shown and legend:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=3 if max(len(each.label) for each in shown) < 10 else 2,
            fontsize=10,
        )
