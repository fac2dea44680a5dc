"""The second study: its cells are recipes, its schedule is the planned one, one cell runs."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import dilemma2
import dilemma2_page
from dilemma2 import FALLING, FIXED, PARTS, RISING, ramp, ramp_forward, ramp_settings, trials
from macl import CosineSchedule, recipes
from study import Line, Lines, digest, run_trials


def planned(lines: Lines) -> list[dilemma2.Trial]:
    return [t for part in PARTS for t in trials(part, Path("work"), Path("data"), lines)]


def test_the_cells_are_those_of_the_plan(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    pilot = next(trials("H4", Path("work"), Path("data"), lines))
    assert [*trials("H4", Path("work"), Path("data"), lines)] == [pilot]  # waits for its W
    lines.add(Line(*pilot.key, "", {}, {"gradient_scale": 0.3}, None, 1.0, "0"))
    second = [*trials("H4", Path("work"), Path("data"), lines)][1]
    lines.add(Line(*second.key, "", {}, {"gradient_scale": 0.05}, None, 1.0, "0"))
    found = planned(lines)
    count = {part: len([*trials(part, Path(), Path(), lines)]) for part in PARTS}
    assert count == {
        "H1": 96, "H2": 24, "H3-sentences": 30, "H4": 22, "H3-images": 30, "H5": 9,
    }  # fmt: skip
    assert {t.overrides["loss.temperature"] for t in found if t.regime.endswith("positives")} == {
        0.05
    }
    keys = {trial.key for trial in found}
    assert len(keys) == len(found)
    recipe_of = {t.key: recipes.load(t.recipe, t.overrides, {"seed": t.seed}) for t in found}
    assert len({(digest(recipe), key[2]) for key, recipe in recipe_of.items()}) == len(found)


def test_every_line_belongs_to_the_plan() -> None:
    lines = Lines(dilemma2.LINES)
    assert set(lines.by_key) <= {trial.key for trial in planned(lines)}


def test_the_levels_of_the_ramps() -> None:
    """Twofold, in opposite directions, with one harmonic mean, at which the control is fixed."""
    found = ramp_settings(0.05, 100)
    share = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    for name, rising in ((RISING, True), (FALLING, False)):
        bounds = found[name]
        path = ramp(share, *(bounds[key] for key in dilemma2.BOUNDS), rising=rising)
        assert path.max() / path.min() == pytest.approx(2, rel=1e-3)
        assert bool(path[0] < path[-1]) is rising
        assert 1 / (1 / path).mean().item() == pytest.approx(found[FIXED], rel=1e-5)
    schedule = CosineSchedule(0.05, 0.1, found[RISING]["period"])
    for step, expected in ((0, 0.05), (50, 0.05 * math.sqrt(2)), (100, 0.1), (101, 0.1)):
        schedule.advance(step)
        assert ramp_forward(schedule, torch.zeros(())).item() == pytest.approx(expected)


def test_the_smallest_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CosineSchedule, "forward", ramp_forward)
    monkeypatch.setattr(dilemma2, "IMAGES", 96)
    generator = np.random.default_rng(0)
    (tmp_path / "cifar10").mkdir()
    for name in ("train", "test"):
        images = generator.integers(0, 256, (128, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(128) % 10
        np.savez(tmp_path / f"cifar10/{name}.npz", images=images, labels=labels)
    lines = Lines(tmp_path / "lines.jsonl")
    trial = next(trials("H3-images", tmp_path / "work", tmp_path, lines))
    small = {"epochs": 2, "batch_size": 32, "encoder.width": 8, "monitor_every": 1}
    small |= {"loss.temperature": ramp_settings(0.1, 6)[RISING]}
    trial = replace(trial, overrides={**trial.overrides, **small})
    dilemma2.prepare(trial, tmp_path / "work", tmp_path)
    runs = tmp_path / "runs"
    assert run_trials([trial], lines, runs, 10, dilemma2.execute, version="0+abc")
    (found,) = Lines(lines.file)
    assert found.version == "0+abc"
    assert found.training["temperature"] > 0.1 / math.sqrt(2)
    assert {"knn top1", "along monitor 1"} <= set(found.scores)


def finished(lines: Lines, parts: tuple[str, ...] = PARTS) -> Lines:
    """Lines of all trials: DCL is 2 ± 0.1 points ahead, and each loss is best by dev at 0.065."""
    noise = np.random.default_rng(0)
    for part in parts:
        for _ in range(3):  # the pilot of H4 decides which trials follow
            for trial in trials(part, Path(), Path(), lines):
                value = 50 + 2 * trial.label.startswith("DCL") + 0.1 * noise.standard_normal()
                dev = 60 + 5 * ("0.065" in trial.label)
                tests = dict.fromkeys(dilemma2_page.TEST, value - 9 * ("0.1" in trial.label))
                values = {dilemma2_page.DEV: dev, dilemma2_page.KNN: value}
                if trial.regime == dilemma2_page.SENTENCES:
                    values = {dilemma2_page.DEV: dev, **tests}
                figures = {"gradient_scale": 0.05}
                if trial.key not in lines.by_key:
                    lines.by_key[trial.key] = Line(*trial.key, "", values, figures, None, 1.0, "0")
    return lines


def test_the_page_waits_until_a_hypothesis_is_complete(tmp_path: Path) -> None:
    lines = finished(Lines(tmp_path / "lines.jsonl"), ("H1",))
    last = lines.by_key.pop(next(reversed(lines.by_key)))
    assert dilemma2_page.progress("H1", lines) == (95, 96)
    assert "H1: reweighting" not in dilemma2_page.part_text(lines)
    lines.by_key[last.regime, last.label, last.seed] = last
    text = dilemma2_page.part_text(lines)
    assert "H1: reweighting" in text
    assert "H2: artifact" not in text
    assert "P1: when all five are there" in text


def test_the_page_chooses_by_dev_and_corrects_five_tests(tmp_path: Path) -> None:
    lines = finished(Lines(tmp_path / "lines.jsonl"))
    best = dilemma2_page.chosen(lines, [f"DCL, τ = {tau:g}" for tau in dilemma2.LEVELS])
    at = dilemma2_page.scores(lines, dilemma2_page.SENTENCES, "DCL, τ = 0.065")
    assert best == {unit: at[unit] for unit in range(8)}
    first, *_ = dilemma2_page.reweighting(lines)
    own = [best[unit] for unit in range(8)]
    base = dilemma2_page.scores(lines, dilemma2_page.SENTENCES, "InfoNCE, τ = 0.065")
    assert first.difference.mean == pytest.approx(np.mean(own) - np.mean([*base.values()]))
    text = dilemma2_page.part_text(lines)
    assert "P1: ahead" in text
    assert "P2: behind" in text  # InfoNCE with another optimizer − DCL
    assert "P3: equal within ±0.5" in text
    assert all(f"| {name} |" in text for name in dilemma2_page.PRIMARY)
