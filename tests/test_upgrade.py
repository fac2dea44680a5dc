"""Runs that version 0.1 made open, evaluate and continue."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import recipe_texts
from macl import evaluate, recipes, train
from macl.core.errors import UserError
from macl.recipes.upgrade import RENAMED_KEYS
from macl.runs import Run
from macl.training.fit import train as fit
from tiny import HERE, METHODS, recipe


def aged(folder: Path) -> None:
    """Rewrite the stored recipe of a run as 0.1 wrote it."""
    file = folder / "recipe.yaml"
    values = yaml.safe_load(file.read_text())
    for old, new in RENAMED_KEYS.items():
        *parents, name = old.split(".")
        section = values
        for parent in parents:
            section = section.get(parent, {}) if isinstance(section, dict) else {}
        today = new.rpartition(".")[2]
        if (
            isinstance(section, dict)
            and today in section
            and (today, name) != ("protocols", "tasks")
        ):  # of text alone
            section[name] = section.pop(today)
    values["evaluation"]["linear"]["schedule"] = "none"
    for key in ("loggers", "evaluate_best"):  # keys that 0.1 did not have
        values.pop(key, None)
    file.write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.mark.slow
def test_a_run_of_0_1_opens_and_continues(tmp_path: Path) -> None:
    made = fit(
        recipe("epochs=1", *METHODS["moco"], "evaluation.protocols=[knn]"),
        tmp_path / "run",
        compute=HERE,
    )
    before = made.recipe
    aged(made.folder)
    stored = yaml.safe_load((made.folder / "recipe.yaml").read_text())
    assert {"accumulate", "clip"} < stored.keys()
    assert "splits" in stored["method"]
    assert "grey_p" in stored["views"]
    assert Run.open(made.folder).recipe == before
    assert evaluate(made.folder)[0].value > 0
    longer = train(made.folder, resume=True, epochs=2)
    assert longer.metrics()[-1]["epoch"] > made.metrics()[0]["epoch"]


def test_a_recipe_of_the_user_names_the_new_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    values = yaml.safe_load(recipes.dump(recipe()))
    values["clip"] = values.pop("gradient_clip")
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match="clip is now called gradient_clip"):
        recipe_texts.load(str(file), [])
