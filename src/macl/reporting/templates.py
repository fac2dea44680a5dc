"""The templates of the page, and how they write numbers and styles."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PALETTE = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6",
    "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff's ten (arXiv:2107.02270), found by a survey and a model of color-vision deficiency."""


@cache
def environment() -> Environment:
    """What opens the files of this package as templates; all values are escaped."""
    templates = Environment(
        loader=PackageLoader("macl.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "figure": figure,
        "shown": shown,
        "style": style_of,
        "tenths": "{:.1f}".format,
    }
    return templates


def asset(name: str) -> str:
    """The text of a file of this package."""
    return resources.files("macl.reporting").joinpath(name).read_text(encoding="utf-8")


def drawn(macro: str, /, **values: Any) -> Markup:
    """One of the charts of charts.html."""
    return Markup(getattr(environment().get_template("charts.html").module, macro)(**values))


def shown(value: float) -> str:
    """A number as axes and texts show it."""
    return f"{value:.4g}".replace("-", "−")


def figure(value: float) -> str:
    """The value with two decimals from 10 on (percentages), with three below."""
    digits = 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}".replace("-", "−")


def style_of(number: int) -> str:
    """The CSS classes of line `number`: its color and its dashes."""
    return f"c{number % len(PALETTE)} d{number // len(PALETTE) % 4}"
