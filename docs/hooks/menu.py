"""The order of the pages in the folders whose menu is not written by hand."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

FOLDERS = {"Tutorials": "tutorials", "Methods": "methods", "Results": "results"}
KINDS = {"loss": "Losses", "temperature": "Temperatures", "method": "Training methods"}


def front_matter(text: str) -> dict[str, object]:
    """The values at the head of a page; empty where there are none."""
    found = re.match(r"---\n(.*?)^---\n", text, re.M | re.S)
    return yaml.safe_load(found[1]) if found else {}


def methods(docs: Path) -> dict[str, dict[str, object]]:
    """The facts of every method page by its file name, in the order that the pages state."""
    pages = {}
    for path in sorted((docs / "methods").glob("*.md")):
        if path.name != "index.md":
            pages[path.name] = front_matter(path.read_text(encoding="utf-8"))
    return dict(
        sorted(
            pages.items(), key=lambda item: (list(KINDS).index(item[1]["kind"]), item[1]["order"])
        )
    )


def further_pages(docs: Path, section: str, listed: list[str]) -> list[object]:
    """What the menu of a section shows after the pages that it lists."""
    folder = FOLDERS[section]
    if section == "Methods":
        facts = methods(docs)
        return [
            {title: [f"methods/{name}" for name, each in facts.items() if each["kind"] == kind]}
            for kind, title in KINDS.items()
        ]
    if section == "Tutorials":
        names = [path.with_suffix(".md").name for path in sorted((docs / folder).glob("*.py"))]
        names += sorted(path.name for path in (docs / folder).glob("*.md"))
    else:
        names = sorted(path.name for path in (docs / folder).glob("*.md"))
    return [f"{folder}/{name}" for name in names if f"{folder}/{name}" not in listed]
