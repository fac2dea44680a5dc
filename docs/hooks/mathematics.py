"""Turns the formulas of a page into MathML, which browsers draw without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def to_mathml(content: str) -> str:
    """The HTML of a page with every formula that arithmatex marked as MathML."""
    return FORMULA.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    latex = html.unescape(found["latex"]).strip()
    display = "block" if found["open"] == "[" else "inline"
    drawn = convert(latex, display=display)
    tag = found["tag"]
    return f'<{tag} class="arithmatex">{drawn}</{tag}>'
