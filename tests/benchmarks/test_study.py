"""The studies: trials are run once, in order, within their budget, and go on from their lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import study
from macl import recipes
from macl.core.errors import UserError
from study import Line, Lines, Trial, digest, resolved, run_trials
from study_tables import corrected, difference_text, entries, replace_part

SMALL = {
    "epochs": 1,
    "monitor_every": 0,
    "encoder.width": 8,
    "encoder.name": "resnet8",
    "evaluation.protocols": ["knn"],
}


def trial(loss: str, seed: int = 0, **more: object) -> Trial:
    return Trial("digits", loss, seed, "digits", {**SMALL, "loss": loss, **more})


def line(label: str, seed: int, value: float, regime: str = "r") -> Line:
    return Line(regime, label, seed, "", {"knn top1": value}, {}, None, 60.0, "0")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Trials are not trained: which were run is noted, in order."""
    ran: list[tuple[str, str, int]] = []

    def note(trial: Trial, recipe: recipes.Recipe, folder: Path, execute: object) -> Line:
        ran.append(trial.key)
        return Line(*trial.key, digest(recipe), {"knn top1": 1.0}, {}, 0.125, 60.0, "0")

    monkeypatch.setattr(study, "run_trial", note)
    return ran


def test_a_trial_is_trained_and_its_line_has_scores_and_figures(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    assert run_trials([trial("macl")], lines, tmp_path / "runs", minutes=10)
    (found,) = Lines(lines.file)
    assert 0 < found.scores["knn top1"] <= 100
    assert {"gradient_scale", "effective_anchors"} <= set(found.training)
    assert found.temperature == pytest.approx(0.1, rel=0.5)
    assert not list((tmp_path / "runs").iterdir())


def test_a_finished_trial_is_not_run_again(tmp_path: Path, counted: list[object]) -> None:
    file = tmp_path / "lines.jsonl"
    run_trials([trial("dcl")], Lines(file), tmp_path, 10)
    assert run_trials([trial("dcl"), trial("dcl", 1)], Lines(file), tmp_path, 10)
    assert counted == [("digits", "dcl", 0), ("digits", "dcl", 1)]


def test_another_recipe_under_the_same_name_is_refused(
    tmp_path: Path, counted: list[object]
) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    run_trials([trial("dcl")], lines, tmp_path, 10)
    with pytest.raises(UserError, match="another recipe"):
        run_trials([trial("dcl", batch_size=32)], lines, tmp_path, 10)


def test_no_trial_is_begun_beyond_the_budget(tmp_path: Path, counted: list[object]) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.add(Line("digits", "nt-xent", 0, "", {}, {}, None, 120.0, "0"))
    assert not run_trials([trial("dcl")], lines, tmp_path, minutes=1)
    assert counted == []


def test_a_level_control_has_the_mean_temperature_of_its_run(
    tmp_path: Path, counted: list[object]
) -> None:
    control = Trial("digits", "macl, level control", 0, "digits", {"loss": "macl"}, "macl")
    lines = Lines(tmp_path / "lines.jsonl")
    assert resolved(control, lines) is None
    assert not run_trials([control], lines, tmp_path, 10)
    run_trials([trial("macl"), control], lines, tmp_path, 10)
    recipe = resolved(control, lines)
    assert recipe is not None
    assert recipe.loss.temperature == 0.125
    assert recipe.loss.alpha == 0


def test_the_digest_depends_on_values_and_not_on_places() -> None:
    def of(folder: str, **more: object) -> str:
        values = {"data.path": f"{folder}/train.npz", **more}
        return digest(recipes.load("cifar10-small", values))

    assert of("/a") == of("/b/c")
    assert of("/a") != of("/a", batch_size=32)


def test_a_recipe_that_ran_under_another_label_is_not_run_again(
    tmp_path: Path, counted: list[object]
) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    again = Trial("digits", "control", 0, "digits", trial("dcl").overrides)
    assert run_trials([trial("dcl"), again, trial("dcl", 1)], lines, tmp_path, 10)
    assert counted == [("digits", "dcl", 0), ("digits", "dcl", 1)]
    copied = lines.by_key["digits", "control", 0]
    assert copied.scores == lines.by_key["digits", "dcl", 0].scores
    assert copied.seconds == 0


def test_a_recipe_that_ran_in_another_study_is_not_run_again(
    tmp_path: Path, counted: list[object]
) -> None:
    here, there = Lines(tmp_path / "here.jsonl"), Lines(tmp_path / "there.jsonl")
    run_trials([trial("dcl")], there, tmp_path, 10)
    again = Trial("another regime", "control", 0, "digits", trial("dcl").overrides)
    assert run_trials([again], here, tmp_path, 10, elsewhere=[there])
    assert counted == [("digits", "dcl", 0)]
    assert Lines(here.file).by_key[again.key].scores == there.by_key["digits", "dcl", 0].scores


def test_entries_are_paired_by_seed_and_corrected_together(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    for seed, (base, other) in enumerate([(1.0, 2.0), (2.0, 3.1), (4.0, 5.0)]):
        lines.add(line("base", seed, base))
        lines.add(line("other", seed, other))
    lines.add(line("other", 3, 100.0))  # without a partner
    found = corrected(
        entries(lines, "r", ["base", "other"], lambda one: one.scores["knn top1"], "base")
    )
    base, other = found
    assert base.difference is None
    assert other.difference is not None
    assert other.difference.pairs == 3
    assert other.difference.mean == pytest.approx(31 / 30)
    assert other.difference.comparisons == 1
    assert difference_text(other.difference).startswith("**+1.03 [")


def test_lines_are_plain_json_of_one_line_each(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.add(line("τ", 0, 1.0))
    (text,) = lines.file.read_text(encoding="utf-8").splitlines()
    assert json.loads(text)["label"] == "τ"


def test_only_the_marked_part_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t:begin -->\nold\n<!-- t:end -->\nb\n", encoding="utf-8")
    replace_part(page, "t", "new")
    assert page.read_text(encoding="utf-8") == "a\n<!-- t:begin -->\nnew\n<!-- t:end -->\nb\n"
    with pytest.raises(SystemExit, match="no part 'x'"):
        replace_part(page, "x", "new")
