"""Any cell of the grid works: every method trains and is judged on every modality."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import recipe_texts
import tiny
from macl.evaluation.score import score_run
from macl.training.fit import train

NEEDS = {"topics": ("transformers",), "atlas": ("torch_geometric", "networkx"),
         "chembl": ("torch_geometric", "rdkit")}  # fmt: skip
SMALL = {
    "digits": ("encoder.width=8", "data.limit=96", "evaluation.linear.epochs=1"),
    "topics": ("encoder.width=16", "encoder.layers=1", "encoder.vocabulary=200", "batch_size=512",
               "evaluation.protocols=[knn]"),
    "atlas": ("encoder.hidden=8", "evaluation.protocols=[knn]", "batch_size=256"),
    "chembl": ("encoder.hidden=8", "data.limit=96", "evaluation.protocols=[knn]",
               "evaluation.folds=2"),
}  # fmt: skip


@pytest.mark.parametrize("modality", SMALL)
@pytest.mark.parametrize("method", tiny.METHODS)
def test_every_method_on_every_modality(method: str, modality: str, tmp_path: Path) -> None:
    for package in NEEDS.get(modality, ()):
        pytest.importorskip(package)
    overrides = ["epochs=1", "batch_size=32", "schedule.warmup_epochs=0", "monitor_every=0"]
    recipe = recipe_texts.load(modality, [*overrides, *SMALL[modality], *tiny.METHODS[method]])
    run = train(recipe, tmp_path / "run", compute=tiny.HERE)
    rows = run.metrics()
    assert rows
    assert all(math.isfinite(row["loss"]) for row in rows)
    scores = score_run(run)
    assert any(score.protocol == "knn" and score.value > 0 for score in scores)
