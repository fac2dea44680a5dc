"""Values are chosen on validation and reported on test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import macl
from macl.core.errors import UserError
from macl.runs import Run

QUICK = {
    "epochs": 0,
    "data.limit": 150,
    "data.holdout": 0.2,
    "evaluation.protocols": ["knn"],
}


def test_the_best_on_validation_is_compared_on_test(tmp_path: Path) -> None:
    table = macl.compare(
        "digits", {"loss": ["dcl", "macl"]}, seeds=1, out=tmp_path, overrides=QUICK,
        choose={"encoder.width": [2, 8]},
    )  # fmt: skip
    assert len(table[table["metric"] == "knn top1"]) == 2
    found = json.loads((tmp_path / "choice.json").read_text())
    assert (found["score"], found["split"], len(found["tried"])) == ("knn top1", "validation", 4)
    for setting, mean in found["chosen"]:
        others = [m for other, m in found["tried"] if other["loss"] == setting["loss"]]
        assert mean == max(others)
        (folder,) = (tmp_path / "runs").glob(f"loss-{setting['loss']}_*")
        run = Run(folder)
        assert run.recipe.evaluation.split == "test"
        assert run.recipe.encoder.width == int(setting["encoder.width"])
        assert {score["split"] for score in run.results()["scores"]} == {"test"}
    again = macl.compare(
        "digits", {"loss": ["dcl", "macl"]}, seeds=1, out=tmp_path, overrides=QUICK,
        choose={"encoder.width": [2, 8]},
    )  # fmt: skip
    assert again.equals(table)


def test_without_a_validation_part_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"set data\.holdout"):
        macl.compare(
            "digits", seeds=1, out=tmp_path, overrides={**QUICK, "data.holdout": 0},
            choose={"encoder.width": [2, 8]},
        )  # fmt: skip
    assert not list(tmp_path.rglob("recipe.yaml"))
