"""Settings searched by Optuna: continued, pruned, confirmed, refused without labels."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from test_compare_parts import TINY

import macl
from macl.core.errors import UserError
from macl.core.locks import lock_folder
from macl.experiments import confirm, tune
from macl.experiments.compare import Cell
from macl.experiments.tune import Objective, Range, Search, run_search, validate
from macl.runs import Run
from tiny import forked_macl

optuna = pytest.importorskip("optuna")

SPACE: dict[str, Any] = {
    "loss.temperature": Range(0.05, 0.5, log=True),
    "loss": ["nt-xent", "macl"],
}
GIVEN = {**TINY, "monitor_every": 1}


def search(folder: Path, *objectives: str, space: Any = None) -> Search:
    chosen = tuple(map(Objective.of, objectives or ("monitor",)))
    return Search("digits", space or SPACE, GIVEN, folder, chosen)


def pretend(monkeypatch: pytest.MonkeyPatch, score: Any, epochs: int = 3) -> list[Cell]:
    """Training that gives `score(cell)` at once."""
    cells: list[Cell] = []

    def train(cell: Cell, devices: int, objectives: Any, look: Any = None) -> list[float]:
        from macl import recipes
        from macl.probes.score import Score

        cells.append(cell)
        run = Run.create(cell.folder, recipes.resolve(cell.recipe))
        value = score(cell)
        for epoch in range(epochs):
            row = {"epoch": epoch, "monitor": value, "effective_rank": 5.0}
            if look is not None:
                look(row if value > 0 else row | {"effective_rank": 1.0})
        run.record([Score("validation", o.name, value, split="train") for o in objectives])
        return [value] * len(objectives)

    monkeypatch.setattr(tune, "validate", train)
    monkeypatch.setattr(confirm, "validate", train)
    return cells


def temperature(cell: Cell) -> float:
    return float(cell.recipe["loss"]["temperature"])


def test_ranges_and_objectives_are_checked() -> None:
    with pytest.raises(UserError, match="goes up"):
        Range(2, 1)
    with pytest.raises(UserError, match="above 0"):
        Range(0, 1, log=True)
    assert Objective.of("seconds") == Objective("seconds", True)
    assert Objective.of("alignment:min").smallest
    assert not Objective.of("monitor").smallest
    with pytest.raises(UserError, match="NAME:min"):
        Objective.of("monitor:least")


def test_mistakes_are_reported_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="temprature"):
        search(tmp_path, space={"loss.temprature": Range(0.1, 1)}).check()
    with pytest.raises(UserError, match="monitor_every=0"):
        macl.tune("digits", SPACE, out=tmp_path, monitor_every=0)
    with pytest.raises(UserError, match="1 at least"):
        macl.tune("digits", {}, out=tmp_path)
    with pytest.raises(UserError, match="effective_rank, alpha_req"):
        macl.tune("digits", SPACE, out=tmp_path, criterion="luck")
    assert not list(tmp_path.iterdir())


def test_it_refuses_to_select_without_labels(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(f"sentence {n}" for n in range(40)))
    given: dict[str, Any] = {"data": tmp_path / "lines.txt", "out": tmp_path / "out"}
    with pytest.raises(UserError, match=r"no validation score.*1\.26 points.*0\.86"):
        macl.tune("topics", {"optimizer.lr": Range(1e-4, 1e-2, True)}, **given)
    assert not (tmp_path / "out").exists()


def test_a_search_finds_the_best_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(cell: Cell) -> float:
        if len(cells) == 4:
            raise KeyboardInterrupt
        return 100 - abs(math.log(temperature(cell) / 0.2))

    cells: list[Cell] = []
    cells = pretend(monkeypatch, score)
    monkeypatch.setattr(tune, "YOUNG", 0.0)
    found = search(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_search(found, 12)
    stopped = cells[-1]
    study = run_search(found, 12)
    states = [trial.state.name for trial in study.get_trials()]
    assert states.count("COMPLETE") + states.count("PRUNED") == 12
    # The setting that was stopped is the next one that is tried.
    assert cells[4].folder == stopped.folder
    assert len({cell.folder for cell in cells}) == 12
    assert abs(math.log(study.best_trial.params["loss.temperature"] / 0.2)) < 0.5
    before = len(cells)
    assert len(run_search(found, 12).get_trials()) == len(study.get_trials())
    assert len(cells) == before


def test_the_trial_of_a_killed_process_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 leaves a trial that runs for ever; one whose lock is held is left alone."""
    cells = pretend(monkeypatch, temperature)
    monkeypatch.setattr(tune, "YOUNG", 0.0)
    found = search(tmp_path)
    study = run_search(found, 1)
    for run in ("dead", "alive"):
        trial = study.ask()
        for key, values in SPACE.items():
            tune._suggest(trial, key, values)
        trial.set_user_attr("run", run)
    dead, alive = study.get_trials()[1:]
    with lock_folder(tmp_path / "runs", ".alive.lock"):
        study = run_search(found, 2)
    states = {trial.number: trial.state.name for trial in study.get_trials()}
    assert states == {0: "COMPLETE", dead.number: "FAIL", alive.number: "RUNNING", 3: "COMPLETE"}
    assert study.get_trials()[3].params == dead.params
    assert len(cells) == 2


def test_a_collapsed_encoder_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda cell: temperature(cell) - 0.2)
    study = run_search(search(tmp_path), 8)
    for trial in study.get_trials():
        collapsed = trial.params["loss.temperature"] < 0.1999
        assert trial.state.name == ("PRUNED" if collapsed else trial.state.name)
    assert {trial.state.name for trial in study.get_trials()} >= {"PRUNED"}


def test_the_confirmation_uses_new_seeds_and_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search's winner is lucky with seed 0; the confirmation is not fooled."""

    def score(cell: Cell) -> float:
        lucky = cell.seed == 0 and temperature(cell) < 0.1
        return 90.0 if lucky else 50 + 10 * temperature(cell) + 0.01 * cell.seed

    cells = pretend(monkeypatch, score)
    space = {"loss.temperature": [0.05, 0.3, 0.4]}
    done = macl.tune("digits", space, trials=12, confirm=3, seeds=3, out=tmp_path, overrides=GIVEN)
    assert {cell.seed for cell in cells if cell.seed} == {1, 2, 3}
    assert done.chosen[0] == {"loss.temperature": "0.05"}
    assert done.best == "loss.temperature=0.4"
    labels = [row.setting["setting"] for row in done.rows]
    assert labels[0] == "the recipe"
    assert done.rows[1].difference is not None
    assert (tmp_path / "best.yaml").is_file()
    assert "temperature: 0.4" in (tmp_path / "best.yaml").read_text()
    assert json.loads((tmp_path / "tune.json").read_text())["best"] == done.best
    assert "Confirmation with new seeds" in (tmp_path / "tune.md").read_text()


def test_several_objectives_give_a_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda cell: 10 * temperature(cell))
    space = {"loss.temperature": [0.1, 0.2, 0.4]}
    found = search(tmp_path, "monitor", "effective_rank:min", space=space)
    study = run_search(found, 6)
    values = {tuple(trial.values) for trial in study.best_trials}
    # The larger the one, the larger the other, which is to be small: all are on the front.
    assert len(values) == len({trial.params["loss.temperature"] for trial in study.get_trials()})


def test_a_real_cell_is_trained_and_validated(tmp_path: Path) -> None:
    cell = search(tmp_path).cell({"loss.temperature": 0.2}, 1)
    seen: list[dict[str, float]] = []
    objectives = (Objective("monitor"), Objective("seconds", True))
    score, seconds = validate(cell, 1, objectives, seen.append)
    assert len(seen) == GIVEN["epochs"]
    assert {"monitor", "effective_rank", "epoch"} <= set(seen[0])
    assert score == pytest.approx(seen[-1]["monitor"])
    assert seconds > 0
    assert validate(cell, 1, objectives) == [score, seconds]  # as recorded
    with pytest.raises(UserError, match="logs no luck"):
        validate(cell, 1, [Objective("luck")])


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    given = [f"{key}={value}" for key, value in GIVEN.items() if key != "evaluation.protocols"]
    done = forked_macl(
        *("tune", "digits", *given, "--search", "loss.temperature=0.05..0.5:log"),
        *("--search", "loss=nt-xent,macl", "--trials", "3", "--confirm", "1", "--seeds", "2"),
        *("--out", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    assert "best with new seeds" in done.stderr
    wrong = forked_macl("tune", "digits", "--search", "loss.temperature=a..b")
    assert wrong.returncode == 2
