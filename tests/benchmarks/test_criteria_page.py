"""The page on label-free criteria follows from lines."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import criteria_page


def test_the_page_shows_what_the_lines_give() -> None:
    page = criteria_page.PAGE.read_text(encoding="utf-8")
    assert criteria_page.summary() in page
    assert criteria_page.table() in page


def test_a_choice_has_every_setting_once() -> None:
    for task, what, _, settings in criteria_page.groups():
        keys = [tuple((line.recipe, line.seed) for line in own) for own in settings]
        assert len(set(keys)) == len(keys), (task, what)
