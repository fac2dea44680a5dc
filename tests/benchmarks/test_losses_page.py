"""benchmarks/losses.py writes its tables between its marks and leaves the rest of the page."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from losses import MARKS, placed

PAGE = Path(__file__).parents[2] / "docs" / "results" / "losses.md"


def test_tables_take_the_place_of_the_last_ones() -> None:
    page = f"# Title\n\nIntroduction.\n\n{MARKS[0]}\n\nold\n\n{MARKS[1]}\n\n## Another section\n"
    assert placed("new\n", page) == page.replace("old", "new")


def test_a_page_without_marks_gets_them() -> None:
    page = placed("tables\n", "# Title\n")
    assert page == f"# Title\n\n{MARKS[0]}\n\ntables\n\n{MARKS[1]}\n"
    assert placed("tables\n", page) == page


def test_the_recorded_page_has_the_marks_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [text.count(mark) for mark in MARKS] == [1, 1]
