"""Every command as a function: objects in and out, nothing printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import macl
from macl import api, modalities

TINY = {
    "epochs": 1,
    "data.limit": 120,
    "batch_size": 32,
    "encoder.width": 8,
    "schedule.warmup_epochs": 0,
    "monitor_every": 0,
    "evaluation.protocols": ["knn"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> macl.Run:
    folder = tmp_path_factory.mktemp("api") / "run"
    return macl.train("digits", loss="dcl", overrides=TINY, out=folder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_notebook(run: macl.Run, pictures: Path, tmp_path: Path, capfd: Any) -> None:
    """Train, evaluate, embed, diagnose: objects come back and nothing is printed."""
    assert isinstance(run, macl.Run)
    assert run.recipe.loss.name == "dcl"
    scores = run.evaluate(protocols=["knn"], overrides={"evaluation.k": 3})
    assert {score.protocol for score in scores} == {"knn"}
    vectors = run.embed(pictures)
    assert vectors.values.shape == (3, 32)
    assert sorted(vectors.names) == ["0.png", "1.png", "2.png"]
    assert vectors.save(tmp_path / "v.npz") == [tmp_path / "v.npz"]
    assert run.diagnose(items=32).findings
    assert (run.folder / "diagnosis.json").is_file()
    assert capfd.readouterr() == ("", "")


def test_values_reach_the_recipe() -> None:
    section = {"name": "dcl", "temperature": 0.2}
    made = api.resolve("digits", loss=section, epochs=5, overrides={"encoder.width": 8})
    assert (made.loss.name, made.loss.temperature, made.epochs) == ("dcl", 0.2, 5)
    assert made.encoder.width == 8
    again = api.resolve(made, loss="nt-xent")
    assert (again.loss.name, again.loss.temperature, again.epochs) == ("nt-xent", 0.2, 5)
    with pytest.raises(macl.UserError, match="unknown key 'epoch'"):
        api.resolve("digits", epoch=5)
    with pytest.raises(macl.UserError, match="no such file or folder"):
        api.resolve("digits", data="not-there")


class Tiny(nn.Module):
    out_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, self.out_dim)

    def forward(self, view: Tensor) -> Tensor:
        return self.linear(view.mean((2, 3)))


class Count(pl.Callback):
    steps = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1


def test_train_takes_objects(tmp_path: Path) -> None:
    recipe = api.resolve("digits", overrides=TINY)
    dataset = modalities.get("images").load(recipe.data, "train")
    encoder, count = Tiny(), Count()
    before = encoder.linear.weight.detach().clone()
    run = macl.train(recipe, data=dataset, encoder=encoder, callbacks=[count], out=tmp_path / "run")
    assert run.is_finished
    assert count.steps == len(dataset) // 32
    assert not torch.equal(encoder.linear.weight, before)


def test_runs_go_to_new_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of one training does not bind the next in the same process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MACL_RUN_FOLDER", raising=False)
    folders = [macl.train("digits", overrides={**TINY, "epochs": 0}).folder for _ in range(2)]
    assert folders == [Path("runs/digits"), Path("runs/digits-2")]


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(macl.UserError, match="no run to resume"):
        macl.train("digits", resume=True, out=tmp_path / "nothing")


def test_compare_gives_a_table(tmp_path: Path) -> None:
    ended: list[tuple[int, int]] = []
    given: dict[str, Any] = {"overrides": TINY, "seeds": 1, "out": tmp_path}
    frame = macl.compare(
        "digits",
        {"loss": ["nt-xent", "macl"]},
        **given,
        finished=lambda cell, number, total: ended.append((number, total)),
    )
    assert ended == [(1, 2), (2, 2)]
    scores = frame.query("metric == 'knn top1'")
    assert scores.loss.tolist() == ["nt-xent", "macl"]
    assert scores.difference.notna().tolist() == [False, True]
    assert {"alignment", "temperature", "gradient_scale"} <= set(frame.metric)
    assert (tmp_path / "table.md").is_file()
    with pytest.raises(macl.UserError, match="no values"):
        macl.compare("digits", {"loss": []}, **given)


def test_reproduce_gives_a_table(tmp_path: Path) -> None:
    assert len(macl.reproduce("gradient-scale", out=tmp_path)) == 0
    assert (tmp_path / "gradient-scale.png").is_file()
    with pytest.raises(macl.UserError, match="no scale is called"):
        macl.reproduce("umap", scale="smal", out=tmp_path)


def test_diagnose_takes_embeddings_and_runs(run: macl.Run) -> None:
    z = torch.randn(16, 8)
    assert macl.diagnose(z, z, temperature=0.2).findings
    assert macl.diagnose(str(run.folder), items=32).findings
    assert macl.diagnose(run, items=32).findings


def test_evaluate_wants_one_thing(run: macl.Run) -> None:
    with pytest.raises(macl.UserError, match="either a run or an encoder"):
        macl.evaluate()
    with pytest.raises(macl.UserError, match="either a run or an encoder"):
        macl.evaluate(run, encoder="resnet18")


def test_recipes_are_listed() -> None:
    frame = api.list_recipes()
    assert "digits" in frame.name.tolist()
    assert (frame.description != "").all()
