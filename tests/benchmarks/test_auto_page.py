"""The table of docs/results/auto.md is that of its lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from auto import BEGIN, END, FIXED, LINES, PAGE, TASKS, table, trials, write
from study import Line, Lines, resolved


def test_the_page_has_the_table_of_the_lines() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table(Lines(LINES)).strip()


def test_regret_is_the_distance_to_the_best_fixed_tau(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    scores = {f"τ = {tau:g}": 50 + k for k, tau in enumerate(FIXED)}
    scores |= {"auto": 55.5, "auto from 0.5": 50.0, "learned": 40.0}
    for label, score in scores.items():
        own = {"knn top1": score}
        lines.add(Line("digits, NT-Xent", label, 0, "x", own, {"temperature": 0.1}, 0.1, 1.0, "0"))
    text = table(lines)
    assert "| 57.00 (τ = 0.5) | 50.00 (τ = 0.02) | 54.00 (3.00) | 55.50 (1.50; 0.100)" in text
    assert "auto 1.50 on average and 1.50 at worst" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter")
    write(lines, page)
    assert page.read_text().startswith("before\n")
    assert text in page.read_text()
    assert page.read_text().endswith("after")


@pytest.mark.parametrize("task", [*TASKS])
def test_every_trial_has_a_recipe(task: str) -> None:
    made = [resolved(trial, Lines(Path("nothing"))) for trial in trials(task, Path("data"))]
    assert len({str(recipe) for recipe in made}) == len(made)
