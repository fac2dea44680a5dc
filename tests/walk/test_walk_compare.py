"""A comparison keeps its tables, and finds a misspelled metric before the hours are over."""

from __future__ import annotations

from pathlib import Path

import pytest

import macl
from macl.core.errors import UserError
from macl.experiments.records import read_looks
from macl.runs import Run

QUICK = {
    "epochs": 0,
    "data.limit": 120,
    "encoder.width": 8,
    "evaluation.protocols": ["knn"],
}


def test_another_grid_does_not_overwrite_the_tables(tmp_path: Path) -> None:
    macl.compare("digits", {"loss": ["nt-xent", "dcl"]}, seeds=1, out=tmp_path, overrides=QUICK)
    before = (tmp_path / "table.md").read_text()
    with pytest.raises(UserError, match=r"tables of another comparison, with loss=nt-xent"):
        macl.compare("digits", {"loss": ["macl"]}, seeds=1, out=tmp_path, overrides=QUICK)
    assert (tmp_path / "table.md").read_text() == before
    more = {"loss": ["nt-xent", "dcl", "macl"]}
    macl.compare("digits", more, seeds=1, out=tmp_path, overrides=QUICK)
    assert "macl" in (tmp_path / "table.md").read_text()
    assert read_looks(tmp_path) == [1]


def test_a_metric_of_no_protocol_is_refused_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run has the metric 'knnn top1'\. Did you mean 'knn'"):
        macl.compare(
            "digits", {"loss": ["dcl"]}, seeds=1, out=tmp_path, overrides=QUICK,
            metrics=["knnn top1"],
        )  # fmt: skip
    assert not list(tmp_path.rglob("recipe.yaml"))


def test_a_misspelled_metric_ends_the_comparison_after_one_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'knn tpo1'\. Did you mean 'knn top1'"):
        macl.compare(
            "digits", {"loss": ["dcl", "macl"]}, seeds=2, out=tmp_path, overrides=QUICK,
            metrics=["knn tpo1"],
        )  # fmt: skip
    finished = [file for file in tmp_path.rglob("recipe.yaml") if Run(file.parent).is_finished]
    assert len(finished) == 1
