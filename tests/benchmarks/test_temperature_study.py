"""The temperature study: candidates on validation, then seeds of the best, then its control."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import temperature_study
from macl import recipes
from study import Line, Lines, Trial
from temperature_page import TaskResults
from temperature_settings import TASKS, control, methods, section
from temperature_study import VALIDATION, chosen, control_of, lines_of, text, trials


def finish(lines: Lines, trial: Trial, value: float, temperature: float | None = 0.2) -> None:
    scores = dict.fromkeys(TASKS["digits"].scores, value)
    lines.add(Line(*trial.key, "", scores, {}, temperature, 1.0, "0"))


@pytest.mark.parametrize("task", TASKS)
def test_every_candidate_is_a_recipe(task: str) -> None:
    where = {} if task == "digits" else {"data.path": "x"}
    for own in methods(TASKS[task]).values():
        for setting in own.candidates:
            sizes = {**TASKS[task].sizes, **TASKS[task].choose, **where}
            recipes.load(TASKS[task].recipe, {**sizes, "loss": section(setting)})


def test_the_best_candidate_runs_with_all_seeds_and_then_its_control(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    task, known = TASKS["digits"], methods(TASKS["digits"])
    candidates = sum(len(own.candidates) for own in known.values() if len(own.candidates) > 1)
    first = [*islice(trials(lines, "digits", {}), candidates)]
    assert {trial.regime for trial in first} == {VALIDATION.format("digits")}
    macl = known["MACL"]
    assert chosen(lines, "digits", macl) is None
    for trial in first:
        finish(lines, trial, 90.0 if trial.label == text(macl.candidates[1]) else 80.0)
    assert chosen(lines, "digits", macl) == macl.candidates[1]

    seeded = [t for t in trials(lines, "digits", {}) if t.regime == "digits"]
    own = [trial for trial in seeded if trial.label == "MACL"]
    assert [trial.seed for trial in own] == list(range(task.seeds))
    assert all(trial.overrides["loss"] == macl.candidates[1] for trial in own)
    assert not any("control" in trial.label for trial in seeded)
    assert control_of(lines, "digits", "MACL", macl.candidates[1]) is None
    for trial in own:
        finish(lines, trial, 91.0, temperature=0.1 + 0.05 * trial.seed)
    (fixed,) = {
        text(trial.overrides["loss"])
        for trial in trials(lines, "digits", {})
        if trial.label == "MACL, control"
    }
    assert fixed == text({"name": "nt-xent", "temperature": 0.2})


def test_a_control_has_the_negatives_of_its_method() -> None:
    assert control({"name": "siglip"}, 0.07)["name"] == "info-nce"
    assert control({"name": "macl"}, 0.123456) == {"name": "nt-xent", "temperature": 0.123}


def test_the_page_shows_what_the_lines_give() -> None:
    page = temperature_study.DATA.parent / "temperatures.md"
    for name in TASKS:
        lines = lines_of(name)
        if lines.by_key:
            assert TaskResults(lines, name).markdown() in page.read_text(encoding="utf-8")
