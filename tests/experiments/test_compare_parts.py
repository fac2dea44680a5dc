"""Comparisons in parts: level controls, rows as cells finish."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import recipe_texts
from macl import api, recipes
from macl.core.errors import UserError
from macl.experiments import running
from macl.experiments.compare import (
    Cell,
    adaptive_setting,
    control_setting,
    is_adaptive,
    is_finished,
    mean_temperature,
    with_level_controls,
)
from macl.experiments.records import recorded
from macl.experiments.rows import training_figures
from macl.runs import Run

TINY = {
    "epochs": 2,
    "schedule.warmup_epochs": 0,
    "data.limit": 96,
    "batch_size": 32,
    "encoder.width": 8,
    "monitor_every": 0,
    "evaluation.protocols": ["knn"],
}
VARY = {"loss": ["nt-xent", "macl"]}


def finished_cell(cell: Cell, value: float, rows: str = "") -> None:
    """A folder as a finished run leaves it, without training."""
    run = Run.create(cell.folder, recipes.resolve(cell.recipe))
    run.metrics_file.write_text(rows or "step,epoch,temperature\n2,0,0.1\n4,1,0.2\n")
    score = {"protocol": "knn", "task": "", "metric": "top1", "split": "test", "value": value}
    run.results_file.write_text(json.dumps({"scores": [score | {"details": {}}]}))


def planned(out: Path, seeds: int = 2, *, epochs: int = 2) -> list[Cell]:
    return recipe_texts.plan("digits", ["loss=nt-xent,macl"], seeds, [f"epochs={epochs}"], out)


def table_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_which_losses_adapt() -> None:
    for loss, adapts in (
        (["loss=macl"], True),
        (["loss=macl", "loss.alpha=0"], False),
        (["loss=nt-xent"], False),
        (["loss=nt-xent", "loss.temperature={name: cosine}"], True),
        (["loss=dcl", "loss.temperature={name: learned}"], True),
    ):
        assert is_adaptive(recipe_texts.load("digits", loss)) is adapts, loss


def test_the_label_of_a_control() -> None:
    setting = (("batch_size", "8"), ("loss", "macl"))
    assert control_setting(setting) == (("batch_size", "8"), ("loss", "macl, level control"))
    assert adaptive_setting(control_setting(setting)) == setting
    assert adaptive_setting(setting) is None
    assert control_setting((("epochs", "8"),)) == (("epochs", "8, level control"),)


def test_the_level_is_the_harmonic_mean_over_steps(tmp_path: Path) -> None:
    """Rows at steps 10, 20, 25 stand for 10, 10 and 5 steps."""
    cell = planned(tmp_path)[0]
    finished_cell(cell, 1.0, "step,epoch,temperature\n10,0,0.1\n20,0,0.2\n25,1,0.4\n")
    run = Run(cell.folder)
    assert mean_temperature(run) == pytest.approx(25 / (10 / 0.1 + 10 / 0.2 + 5 / 0.4))
    figures = training_figures(run)
    assert figures["temperature"] == 0.4
    assert (figures["temperature_lowest"], figures["temperature_highest"]) == (0.1, 0.4)


def test_a_temperature_that_did_not_move_has_no_range(tmp_path: Path) -> None:
    cell = planned(tmp_path)[0]
    finished_cell(cell, 1.0, "step,epoch,temperature\n10,0,0.1\n20,0,0.10000001\n")
    assert "temperature_lowest" not in training_figures(Run(cell.folder))


def test_a_control_differs_from_its_run_in_the_temperature_alone(tmp_path: Path) -> None:
    cells = planned(tmp_path)
    for cell in cells[:3]:
        finished_cell(cell, 1.0)
    every = with_level_controls(cells)
    (control,) = [cell for cell in every if cell not in cells]  # of the finished macl run alone
    assert every.index(control) == every.index(cells[2]) + 1
    assert control.seed == 0
    adaptive = recipes.flatten(cells[2].recipe)
    fixed = recipes.flatten(control.recipe)
    changed = {key: fixed[key] for key in fixed if fixed[key] != adaptive.get(key)}
    assert changed == {"loss.temperature": 0.133333, "loss.alpha": 0.0}
    assert not is_adaptive(recipes.resolve(control.recipe))


def test_controls_run_after_their_runs_and_once(tmp_path: Path) -> None:
    """A second call with one more seed runs the new ones alone."""
    options = {"out": tmp_path, "control": "level", "overrides": TINY}
    first = api.run_comparison("digits", VARY, seeds=1, **options)
    assert [row.setting["loss"] for row in first.rows if row.metric == "knn top1"] == [
        "nt-xent",
        "macl",
        "macl, level control",
    ]
    made = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("results.json")}
    outcome = api.run_comparison("digits", VARY, seeds=2, **options)
    assert {file: file.stat().st_mtime_ns for file in made} == made
    rows = {(row.setting["loss"], row.metric): row for row in outcome.rows}
    level = rows["macl, level control", "knn top1"]
    adaptive = rows["macl", "knn top1"]
    assert level.seeds == [0, 1]
    assert adaptive.to_control is not None
    assert adaptive.to_control.mean == pytest.approx(adaptive.mean - level.mean)
    assert level.difference is not None
    assert level.to_control is None
    # Every other figure of the training is there too, the fixed τ among them.
    assert rows["macl, level control", "temperature"].std < 0.05
    assert 0 < rows["nt-xent", "effective_anchors"].mean <= 1
    text = (tmp_path / "table.md").read_text()
    assert "| macl | knn top1 | level control |" in text
    assert "2 looks were taken: with 1 and 2 seeds." in text
    lines = table_of(tmp_path / "cells.csv")
    assert [(line["loss"], line["seed"]) for line in lines[:2]] == [
        ("nt-xent", "0"),
        ("nt-xent", "1"),
    ]
    assert len(lines) == 6
    assert float(lines[0]["knn top1"]) == rows["nt-xent", "knn top1"].values[0]


@pytest.mark.parametrize(
    ("vary", "message"), [({}, "vary a key too"), ({"loss": ["dcl", "nt-xent"]}, "no setting")]
)
def test_a_control_without_use_is_an_error(
    vary: dict[str, list[str]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        api.run_comparison("digits", vary, out=tmp_path, control="level")
    assert not list(tmp_path.iterdir())


def test_a_row_is_written_as_each_cell_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, seen = planned(tmp_path), []

    def run(cell: Cell, devices: int) -> None:
        if cell.seed == 1:
            raise UserError("diverged")
        finished_cell(cell, 40.0 + cell.seed)

    monkeypatch.setattr(running, "run_cell", run)
    file = tmp_path / "cells.csv"
    record = recorded(
        file, cells, lambda *_: seen.append(len(table_of(file)) if file.exists() else 0)
    )
    with pytest.raises(running.CellsFailed):
        running.run_cells(cells, finished=record)
    assert seen == [1, 1, 2, 2]
    finished_cell(cells[1], 43.0)
    file.unlink()
    recorded(file, cells)  # what the next command begins with
    assert [(line["run"], line["knn top1"]) for line in table_of(file)] == [
        ("loss-nt-xent_seed-0", "40.0"),
        ("loss-nt-xent_seed-1", "43.0"),
        ("loss-macl_seed-0", "40.0"),
    ]


def test_cells_are_evaluated_with_both_encoders(tmp_path: Path) -> None:
    given = {**TINY, "monitor_every": 1, "evaluate_best": True}
    outcome = api.run_comparison("digits", {}, seeds=1, out=tmp_path, overrides=given)
    names = [row.metric for row in outcome.rows]
    assert "knn top1 (best)" in names
    assert "knn top1" in names
    run = Run(next((tmp_path / "runs").iterdir()))
    document = run.results()
    best = [score for score in document["scores"] if score["encoder"] == "best"]
    run.results_file.write_text(json.dumps({"scores": best}))
    # Stopped between the two: the last encoder is still to be evaluated.
    assert not is_finished(Cell((), 0, {}, run.folder))
