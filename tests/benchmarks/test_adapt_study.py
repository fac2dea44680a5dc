"""The study of adapting: its trials are distinct and valid, its page follows from its lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import adapt
from macl import recipes


def test_every_trial_is_a_recipe_of_its_own() -> None:
    grid = list(adapt.trials())
    assert len({json.dumps(key) for key in grid}) == len(grid)
    for key in grid:
        if key["study"] == adapt.MEMORY:
            continue
        text = key["study"] == "SUBJ"
        start = {"encoder.name": adapt.MINILM if text else adapt.LITE0}
        own = {**start, **adapt.LOSSES[key["loss"]], **adapt.TUNINGS[key["tuning"]]}
        recipes.load("adapt-text" if text else "adapt-images", own)


def test_a_row_has_the_mean_over_seeds_beside_the_frozen_encoder() -> None:
    lines = [
        {"study": "cifar10", "tuning": "full", "loss": "DCL", "seed": s, "before": {"kNN": 60.0},
         "after": {"kNN": 64.0 + s}, "peak_mib": 1000 + s}
        for s in range(3)
    ]  # fmt: skip
    (row,) = (line for line in adapt.tables(lines).splitlines() if "DCL" in line)
    assert "| 3 | 60.0 | 65.0 ± 1.0 | +5.0 |" in row


def test_the_page_shows_what_the_lines_give() -> None:
    lines = [json.loads(text) for text in adapt.LINES.read_text().splitlines()]
    assert adapt.tables(lines).strip() in adapt.PAGE.read_text(encoding="utf-8")
