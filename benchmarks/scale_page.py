"""docs/results/scale.md: each benchmark of this kind replaces its own section."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scale.md"


def replace_section(name: str, text: str, page: Path = PAGE) -> None:
    """Put `text` between <!-- NAME --> and <!-- end NAME -->, and print it."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    document = page.read_text(encoding="utf-8")
    found = re.compile(f"{begin}.*?{end}", re.DOTALL)
    if not found.search(document):
        raise SystemExit(f"{page} has no section {begin} … {end}")
    page.write_text(found.sub(lambda _: f"{begin}\n{text.strip()}\n{end}", document), "utf-8")
    print(text)


def machine() -> str:
    """Cores and processor, for the line below a table."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    return f"{os.cpu_count()} cores, {names[0] if names else platform.processor()}"


def peak_memory() -> float:
    """Peak of the resident memory of this process in MB.

    `ru_maxrss` is not it: a process that subprocess starts has that of its parent.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) / 1024


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
