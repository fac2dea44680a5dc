"""The page, the figures' data and the shipped evidence of the study follow from its lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import dilemma_page
from dilemma import ALPHA0, BASELINE, DCL, LINES, importance, regimes, trials
from study import Lines


@pytest.fixture(scope="module")
def found() -> list[dilemma_page.Result]:
    return dilemma_page.results(dilemma_page.gathered())


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("table", dilemma_page.main_table),
        ("pools", dilemma_page.pool_table),
        ("ranks", dilemma_page.rank_text),
    ],
)
def test_the_page_shows_what_the_lines_give(name, make, found) -> None:  # type: ignore[no-untyped-def]
    assert make(found) in dilemma_page.PAGE.read_text(encoding="utf-8")


def test_the_shipped_evidence_is_that_of_the_lines(found, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shipped = dilemma_page.EVIDENCE.read_text(encoding="utf-8")
    monkeypatch.setattr(dilemma_page, "EVIDENCE", tmp_path / "evidence.json")
    dilemma_page.write_evidence(found)
    assert (tmp_path / "evidence.json").read_text(encoding="utf-8") == shipped


def test_every_line_belongs_to_a_planned_trial() -> None:
    lines = Lines(LINES)
    planned = {
        trial.key
        for task, own in regimes(Path("data"), Path("mlm")).items()
        for trial in trials(task, own, lines)
    }
    assert set(lines.by_key) <= planned


def test_three_seeds_of_all_come_before_a_fourth_of_any() -> None:
    own = regimes(Path(), Path())["sentences"]
    order = [
        importance(regime, label, seed) for seed in (2, 3) for regime in own for label in [DCL]
    ]
    assert max(order[: len(own)]) < min(order[len(own) :])
    assert importance(own[0], BASELINE, 0) < importance(own[0], "MACL", 0)


def test_macl_with_alpha_0_is_dcl() -> None:
    """Their gradients are the same, so all lines of a regime were made by the same code."""
    lines = Lines(LINES)
    regime = regimes(Path(), Path())["graphs"][0].name
    found = [lines.values(regime, label, "svm accuracy") for label in (ALPHA0, DCL)]
    assert len(found[0]) == 10
    assert found[0] == found[1]
