"""The cost of a loss, taken from the tables of docs/results."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
PAGES = ("losses.md", "temperatures.md")
"""Where rows are looked for, the first page that has one wins."""


def cost(name: str) -> str:
    """Markdown: the row of class `name` under its header, with its source; empty without one."""
    for page in PAGES:
        path = RESULTS / page
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        for title, table in tables(text):
            head, rule, *body = table
            for row in body:
                first = row.strip("|").split("|")[0].strip()
                if re.fullmatch(
                    rf"(?:both views: |cross-view: )?`?(?:macl\.)?{name}`?(?:[ ,].*)?", first
                ):
                    source = f"{title}; [how and when it was measured](../results/{page})."
                    return "\n".join([head, rule, row, "", source])
    return ""


def tables(text: str) -> list[tuple[str, list[str]]]:
    """The tables of a page with the heading above each."""
    found, title, lines = [], "", [*text.splitlines(), ""]
    current: list[str] = []
    for line in lines:
        if line.startswith("#"):
            title = line.lstrip("# ")
        if line.startswith("|"):
            current.append(line)
        elif current:
            if len(current) > 2:
                found.append((title, current))
            current = []
    return found
