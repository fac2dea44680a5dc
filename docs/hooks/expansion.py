"""The generated parts of pages, which stand where a page has a mark such as `<!-- figure -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import examples
import menu
from command_reference import reference
from costs import cost
from drawing import to_html
from other_curves import COMMITTED, FIGURES

DOCS = Path(__file__).parents[1]


def expand(markdown: str, facts: Mapping[str, Any]) -> str:
    """The page with its generated parts. `facts` is its front matter."""
    parts: dict[str, Callable[[], str]] = {
        "facts": lambda: summary(facts),
        "figure": lambda: figure(facts["figure"], facts["alt"]),
        "recipe, cost, reference": lambda: ending(facts),
        "methods": overview,
        "commands": reference,
        "examples": examples.sections,
    }
    return re.sub(
        r"(?m)^<!-- ([\w, ]+) -->$", lambda found: parts.get(found[1], lambda: found[0])(), markdown
    )


def summary(facts: Mapping[str, Any]) -> str:
    """The table at the head of a method page."""
    rows = [("class", f"[`{facts['class'].removeprefix('macl.')}`][{facts['class']}]")]
    if facts.get("recipe"):
        rows.append(("in a recipe", f"`{facts['recipe']}`"))
    rows += [(key, facts[key]) for key in ("state", "needs", "gradient") if facts.get(key)]
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)])


@cache
def figure(name: str, alt: str) -> str:
    """The figure of a method, drawn now."""
    return to_html({**FIGURES, **COMMITTED}[name](), alt)


def ending(facts: Mapping[str, Any]) -> str:
    """Recipe, cost and reference of a method."""
    lines = [
        "## Recipe",
        "",
        "```bash",
        *facts["commands"],
        "```",
        "",
        "## Cost",
        "",
        facts["cost"],
        "",
    ]
    name = facts["class"].split(".")[-1]
    if facts["kind"] == "loss" and (row := cost(name)):
        lines += [row, ""]
    return "\n".join([*lines, "## Reference", "", facts["reference"]])


def overview() -> str:
    """One table for each kind of method."""
    parts = []
    pages = menu.methods(DOCS)
    for kind, title in menu.KINDS.items():
        parts += [f"## {title}", "", "| | in one line | gradient |", "|---|---|---|"]
        for path, facts in pages.items():
            if facts["kind"] == kind:
                gradient = facts.get("gradient") or "–"
                parts.append(f"| [{facts['title']}]({path}) | {facts['line']} | {gradient} |")
        parts.append("")
    return "\n".join(parts)
