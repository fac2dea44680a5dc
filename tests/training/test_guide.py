"""`loss.guide` and `loss.dims` in recipes: from the data to the loss, and widths afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import macl
import recipe_texts
from macl.core.errors import UserError
from macl.runs import Run
from macl.training.fit import train
from shared import trained
from tiny import HERE, recipe

QUICK = ("epochs=1", "data.limit=70", "monitor_every=0", "loss=nt-xent")
TEXT = (
    "encoder.width=16", "encoder.heads=2", "encoder.vocabulary=200", "epochs=1", "batch_size=64",
    "monitor_every=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Run:
    return trained(recipe(*QUICK))


def losses(run: Run) -> list[float]:
    return [row["info_nce"] for row in run.metrics()]


def test_a_guide_excludes_what_it_finds_similar(run: Run, tmp_path: Path) -> None:
    guide = f"loss.guide={run.folder}"

    def guided(name: str, *more: str) -> list[float]:
        return losses(train(recipe(*QUICK, guide, *more), tmp_path / name, compute=HERE))

    # A sample is never more similar to another one than to itself; and 2 below that is everything.
    assert guided("none", "loss.guide_margin=0") == losses(run)
    assert guided("all", "loss.guide_margin=2.1") == [0.0] * len(losses(run))
    some = guided("some", "loss.guide_margin=0.3")
    assert 0 < some[0] < losses(run)[0]


def test_a_guide_for_text(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"word{i % 7} and number {i}\n" for i in range(128)))
    plain = (*TEXT, f"data.path={lines}")
    first = train(recipe_texts.load("topics", plain), tmp_path / "one", compute=HERE)
    values = (*plain, f"loss.guide={first.folder}", "loss.guide_margin=2.1")
    second = train(recipe_texts.load("topics", values), tmp_path / "two", compute=HERE)
    assert losses(first)[0] > 0
    assert losses(second) == [0.0] * len(losses(first))


def test_a_queue_has_no_guide(run: Run, tmp_path: Path) -> None:
    values = (*QUICK, "method=moco", "method.queue_size=48", f"loss.guide={run.folder}")
    with pytest.raises(UserError, match="MoCo's negatives come from its queue"):
        train(recipe(*values), tmp_path / "run", compute=HERE)


def test_widths_in_training_embedding_and_evaluation(tmp_path: Path) -> None:
    values = (*QUICK, "loss.dims=[8,null]", "method.projector.widths=[]")
    run = train(recipe(*values), tmp_path / "run", compute=HERE)
    row = run.metrics()[-1]
    width = macl.embed(run, run.modality.load(run.recipe.data, "test")).values.shape[1]
    assert row["loss"] == pytest.approx((row["loss_8"] + row[f"loss_{width}"]) / 2, rel=1e-5)
    test = run.modality.load(run.recipe.data, "test")
    whole, narrow = macl.embed(run, test).values, macl.embed(run, test, dims=8).values
    assert torch.equal(narrow, whole[:, :8])
    before = run.results()
    scores = macl.evaluate(run, dims=8, protocols=["knn"])
    assert {score.details["dims"] for score in scores} == {8}
    assert run.results() == before
    with pytest.raises(UserError, match=f"dims=10000: the encoder's vectors have {width}"):
        macl.embed(run, test, dims=10_000)
