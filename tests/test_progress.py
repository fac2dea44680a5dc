"""Progress bars: one at a time, none within another."""

from __future__ import annotations

from pathlib import Path

import pytest

import recipe_texts
from macl.core.progress import silence, track
from macl.experiments import running


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rich treat standard error as a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_bars_are_silent_within(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2], "seen")) == [1, 2]
    assert "seen" in capsys.readouterr().err
    with silence():
        assert list(track([1, 2], "unseen")) == [1, 2]
    assert capsys.readouterr().err == ""
    assert list(track([1], "again")) == [1]
    assert "again" in capsys.readouterr().err


@pytest.mark.slow
def test_a_comparison_shows_its_cells_alone(
    terminal: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["epochs=1", "schedule.warmup_epochs=0", "data.limit=120", "batch_size=32",
                 "encoder.width=8", "monitor_every=0", "evaluation.linear.epochs=2"]  # fmt: skip
    cells = recipe_texts.plan("digits", [], 1, overrides, tmp_path)
    running.run_cells(cells)
    shown = capsys.readouterr().err
    assert "cells" in shown
    for inner in ("embedding", "Linear probe"):
        assert inner not in shown
