"""A run folder read back."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import shared
from macl import modalities
from macl.core.errors import UserError
from macl.evaluation.score import score_run
from macl.modalities.embedding import knn_monitor
from macl.modalities.protocols import Dataset
from macl.probes.score import Score, score_name
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = recipe("epochs=1", "data.limit=100", "evaluation.linear.epochs=2")
    return shared.trained(made, tmp_path_factory.mktemp("runs") / "run")


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe\.yaml.*macl\.train"):
        Run.open(tmp_path)


def test_a_run_remembers_its_recipe(tmp_path: Path) -> None:
    made = recipe("loss=dcl", "data.limit=7")
    run = Run.create(tmp_path / "run", made)
    assert Run.open(run.folder).recipe == made
    assert run.metrics() == []
    assert run.results() == {}
    assert not run.is_finished


def test_empty_cells_of_the_metrics_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss,monitor\n1,0.5,\n2,0.25,90\n")
    assert Run(tmp_path).metrics() == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25, "monitor": 90},
    ]


@pytest.mark.parametrize("scores", ["3", "[3]", '[{"protocol": "knn"}]', '[{"protocol": []}]'])
def test_damaged_results_are_reported(scores: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe())
    run.results_file.write_text(f'{{"scores": {scores}}}')
    with pytest.raises(UserError, match=r"results\.json cannot be read.*Remove it"):
        run.record([Score("knn", "top1", 10.0)])


def test_scores_replace_those_of_the_same_place(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe("seed=4"))
    run.record([Score("knn", "top1", 10.0, details={"k": 5}), Score("linear", "top1", 20.0)])
    run.record([Score("knn", "top1", 30.0), Score("knn", "top1", 40.0, split="validation")])
    document = json.loads(run.results_file.read_text())
    values = {(s["protocol"], s["split"]): s["value"] for s in document["scores"]}
    assert values == {
        ("knn", "test"): 30.0, ("linear", "test"): 20.0, ("knn", "validation"): 40.0,
    }  # fmt: skip
    assert (document["recipe"], document["seed"]) == ("digits", 4)
    assert document["versions"]["torch"] == version("torch")


def test_evaluation_records_and_names_its_protocols(trained: Run) -> None:
    run = Run.open(trained.folder)
    scores = score_run(run, {"evaluation.k": 3}, protocols=["knn"])
    assert {s.protocol for s in scores} == {"knn"}
    assert all(s.details["k"] == 3 for s in scores)
    recorded = {s["metric"]: s["value"] for s in run.results()["scores"]}
    assert recorded == {s.metric: s.value for s in scores}
    score_run(run, {"evaluation.protocols": ["geometry"]})
    assert {s["protocol"] for s in run.results()["scores"]} == {"knn", "geometry"}


def test_data_may_be_overridden_for_evaluation(trained: Run) -> None:
    scores = score_run(Run.open(trained.folder), {"data.limit": 50}, protocols=["knn"])
    assert {(s.details["n_train"], s.details["n_test"]) for s in scores} == {(50, 50)}


def test_the_scores_of_the_best_encoder_are_recorded_beside_the_others(
    trained: Run, tmp_path: Path
) -> None:
    run = Run.open(shutil.copytree(trained.folder, tmp_path / "run"))
    last = score_run(run, protocols=["knn"])
    before = run.results()["scores"]
    scores = score_run(run, protocols=["knn"], best=True)
    assert all(score.encoder == "best" for score in scores)
    recorded = run.results()["scores"]
    assert recorded[: len(before)] == before
    assert [score["encoder"] for score in recorded[len(before) :]] == ["best"] * len(scores)
    assert score_run(run, protocols=["knn"]) == last
    assert len(run.results()["scores"]) == len(recorded)
    names = [*map(score_name, recorded)]
    assert "knn top1" in names
    assert "knn top1 (best)" in names


def test_scores_of_earlier_versions_are_of_the_last_encoder(trained: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained.folder, tmp_path / "run"))
    score_run(run, protocols=["knn"])
    document = run.results()
    for score in document["scores"]:
        del score["encoder"]
    run.results_file.write_text(json.dumps(document))
    score_run(run, protocols=["knn"])
    names = [*map(score_name, run.results()["scores"])]
    assert names.count("knn top1") == 1


def test_mistakes_in_evaluation(trained: Run, tmp_path: Path) -> None:
    run = Run.open(trained.folder)
    with pytest.raises(UserError, match=r"evaluation\.protocols"):
        score_run(run, protocols=["knnn"])
    with pytest.raises(UserError, match=r"unknown key 'evaluation\.kk'"):
        score_run(run, {"evaluation.kk": 3})
    unmonitored = train(
        recipe("epochs=1", "data.limit=40", "monitor_every=0"), tmp_path / "run", compute=HERE
    )
    with pytest.raises(UserError, match="nothing was monitored"):
        score_run(unmonitored, best=True)


def test_an_unfinished_run_offers_the_encoder_of_its_checkpoint(
    trained: Run, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    (folder / "encoder.safetensors").unlink()
    run = Run.open(folder)
    with pytest.warns(UserWarning, match=r"unfinished: .*last checkpoint \(epoch .*resume=True"):
        encoder = run.encoder
    for name, value in trained.encoder.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], value), name
    before = run.results()
    scores = score_run(run, protocols=["geometry"])
    assert {score.encoder for score in scores} == {"unfinished"}
    assert run.results() == before
    run.last_checkpoint.unlink()
    with pytest.warns(UserWarning, match="best monitored encoder"):
        assert Run.open(folder).encoder is not None
    shutil.rmtree(folder / "best")
    with pytest.raises(UserError, match="has no encoder yet"):
        _ = Run.open(folder).encoder


def test_embedding_honors_limit_and_refuses_what_has_no_effect(
    trained: Run, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((9, 8, 8), dtype=np.uint8))
    assert trained.recipe.data.limit == 100
    assert len(trained.open_data(tmp_path / "mine.npz")) == 9
    assert len(trained.open_data(tmp_path / "mine.npz", {"data.limit": 5})) == 5
    with pytest.raises(UserError, match=r"data\.holdout has no effect.*limit, max_side"):
        trained.open_data(tmp_path / "mine.npz", {"data.holdout": 0.1})
    with pytest.raises(UserError, match=r"epochs: .*data\.KEY"):
        trained.open_data(tmp_path / "mine.npz", {"epochs": 1})


class Labeled(Dataset):
    """Items whose embedding is their class, more or less."""

    def __init__(self, labels: torch.Tensor | None) -> None:
        self.labels = labels
        self.names = [str(i) for i in range(60)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples)


def test_the_monitor_scores_within_the_training_data() -> None:
    data = Labeled(torch.arange(60) % 3)

    def embed(part: Labeled) -> torch.Tensor:
        assert torch.equal(part.labels, torch.tensor([part[i] % 3 for i in range(len(part))]))
        assert [int(name) for name in part.names] == [part[i] for i in range(len(part))]
        return torch.nn.functional.one_hot(part.labels, 3).float()

    score = knn_monitor(data, embed, most=50, k=5)
    assert (score.value, score.split, score.details["n"]) == (100.0, "train", 50)


@pytest.mark.parametrize("labels", [None, torch.zeros(60, dtype=torch.int64)])
def test_the_monitor_keeps_quiet_without_classes(labels: torch.Tensor | None) -> None:
    assert modalities.get("images").monitor(None, Labeled(labels)) is None
