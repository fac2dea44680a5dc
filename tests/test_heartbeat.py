"""A long comparison into a file shows that its runs make progress."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import recipe_texts
from macl import cli
from macl.cli import heartbeat
from macl.runs import Run

QUICK = ("epochs=4", "data.limit=200", "batch_size=32", "encoder.width=8", "monitor_every=0",
         "evaluation.protocols=[knn]", "schedule.warmup_epochs=0")  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run in its second epoch."""
    folder = tmp_path / "runs" / "loss-macl_seed-0"
    (cell,) = recipe_texts.plan("digits", [], 1, list(QUICK), tmp_path)
    from macl.recipes import resolve

    made = Run.create(folder, resolve(cell.recipe))
    made.metrics_file.write_text("step,epoch,loss,lr\n6,0,2.5,0.1\n9,1,2.25,0.1\n")
    return made


def test_a_run_in_progress_has_a_line(run: Run, tmp_path: Path) -> None:
    assert [*heartbeat.lines(tmp_path, 0)] == ["loss-macl_seed-0: epoch 2 of 4, step 9, loss 2.250"]
    (run.folder / "encoder.safetensors").touch()
    assert [*heartbeat.lines(tmp_path, 0)] == ["loss-macl_seed-0: trained, evaluation is running"]
    run.results_file.write_text("{}")
    assert [*heartbeat.lines(tmp_path, 0)] == []


def test_what_was_not_written_since_or_is_half_written_has_none(run: Run, tmp_path: Path) -> None:
    assert [*heartbeat.lines(tmp_path, run.metrics_file.stat().st_mtime + 1)] == []
    run.metrics_file.write_text("step,epoch,loss,lr\n6,0,2.")
    assert len([*heartbeat.lines(tmp_path, 0)]) == 1
    run.metrics_file.write_text("step,epoch,loss,lr\n6,0,-")
    assert [*heartbeat.lines(tmp_path, 0)] == []


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_compare_prints_lines_while_runs_train(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error is no terminal here."""
    monkeypatch.setattr(heartbeat, "SECONDS", 0.01)
    given = ["compare", "digits", "--vary", "loss=nt-xent,macl", "--seeds", "1", "--jobs", jobs]
    monkeypatch.setattr(sys, "argv", ["macl", *given, "--out", str(tmp_path / "out"), *QUICK])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = capsys.readouterr().err
    assert "loss-macl_seed-0: epoch " in shown, shown
    assert "2 of 2 runs ended" in shown
