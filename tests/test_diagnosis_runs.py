"""What `macl diagnose` says of real runs: of each dilemma, of every method and modality."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import recipe_texts
from macl import cli
from macl.core.errors import UserError
from macl.evaluation.diagnose import diagnose_run
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, METHODS, recipe

RunOf = Callable[[str], Run]

SMALL = (
    "data.limit=600", "encoder.width=8", "batch_size=16", "epochs=4", "optimizer.lr=0.005",
    "schedule.warmup_epochs=0.5", "monitor_every=0", "views.crop_scale=[0.9,1]",
)  # fmt: skip
"""The digits with crops that hardly crop: easy positives, in small batches."""

CASES = {
    "easy": ("loss.reweight=false",),
    "healthy": (),
    "hot": ("loss.temperature=1", "views.crop_scale=[0.5,1]"),
    "collapsed": (
        "epochs=1", "optimizer.name=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=10",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The runs by name, each trained when it is first asked for."""

    @cache
    def trained(name: str) -> Run:
        if name in METHODS:
            made = recipe(*METHODS[name])
        else:
            made = recipe_texts.load("digits", [*SMALL, *CASES[name]])
        return train(made, tmp_path_factory.mktemp("diagnosis") / name, compute=HERE)

    return trained


def test_easy_positives_without_reweighting_are_gradient_reduction(run_of: RunOf) -> None:
    run = run_of("easy")
    result = diagnose_run(run, items=512)
    assert result.problems == ("gradient reduction",)
    found = result["gradient reduction"].evidence
    logged = [row["gradient_scale"] for row in run.metrics() if row["epoch"] == 3]
    assert found["last_epoch_gradient_scale"] == pytest.approx(sum(logged) / len(logged))
    logged = [row["effective_anchors"] for row in run.metrics() if row["epoch"] == 3]
    assert found["last_epoch_effective_anchors"] == pytest.approx(sum(logged) / len(logged))
    assert 0 < found["effective_anchors"] <= 1
    assert found["mean_gradient_scale"] == pytest.approx(
        found["last_epoch_gradient_scale"], abs=0.1
    )
    assert all(name.startswith("train/") for name in found["smallest"])
    assert "loss.reweight=true" in result.advice[0].change
    assert "batch_size" in result.advice[1].change
    hotter = [a for a in result.advice if "raise the temperature" in a.change]
    assert bool(hotter) == (result["hard negatives"].verdict == "watch")


def test_a_healthy_run_has_no_problem(run_of: RunOf) -> None:
    result = diagnose_run(run_of("healthy"), items=512)
    assert result.problems == ()
    assert result["gradient reduction"].verdict == result["uniformity"].verdict == "ok"
    assert result["gradient reduction"].evidence["mean_gradient_scale"] < 0.5
    assert "MACL does not lose the gradient" in result["gradient reduction"].words


def test_a_high_temperature_is_poor_uniformity(run_of: RunOf) -> None:
    result = diagnose_run(run_of("hot"), items=512)
    assert result.problems == ("uniformity",)
    assert "poor" in result["uniformity"].words
    assert result.advice[0].change.startswith("Lower the temperature: loss.temperature (τ0) from 1")


def test_a_collapsed_encoder_is_found(run_of: RunOf) -> None:
    result = diagnose_run(run_of("collapsed"), items=64)
    assert "collapse" in result.problems
    assert result["collapse"].words.startswith("collapsed")
    assert len(result.advice) == 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_seen_as_its_loss_saw_it(run_of: RunOf, method: str) -> None:
    run = run_of(method)
    result = diagnose_run(run, items=128)
    found = result["gradient reduction"].evidence
    assert found["mean_gradient_scale"] == pytest.approx(
        found["last_epoch_gradient_scale"], abs=0.1
    )
    negatives = {"simclr": 2 * 32 - 2, "moco": 48, "nnclr": 32 - 1}[method]
    assert result["hard negatives"].evidence["negatives"] == negatives
    assert "weight_of_false_negatives" in result["hard negatives"].evidence


def test_nothing_is_changed_and_the_result_is_repeatable(run_of: RunOf) -> None:
    run = run_of("simclr")
    before = {name: value.clone() for name, value in run.encoder.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    result = diagnose_run(run, items=64)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(before[k], v) for k, v in run.encoder.state_dict().items())
    assert diagnose_run(run, items=64) == result


def test_a_run_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    made = recipe("epochs=1", "data.limit=100", "monitor_every=0")
    run = train(made, tmp_path / "run", compute=HERE)
    run.last_checkpoint.unlink()
    with pytest.raises(UserError, match=r"last\.ckpt is not there.*copy the checkpoint"):
        diagnose_run(Run.open(run.folder), items=64)
    run.folder.joinpath("encoder.safetensors").unlink()
    with pytest.raises(UserError, match="resume=True"):
        diagnose_run(Run.open(run.folder))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, run_of: RunOf) -> None:
    made = recipe("epochs=1", "data.limit=100", "monitor_every=0")
    run = train(made, tmp_path / "run", compute=HERE)
    run.last_checkpoint.write_bytes(run_of("moco").last_checkpoint.read_bytes())
    with pytest.raises(UserError, match="another run"):
        diagnose_run(run)


def test_text_with_hard_negatives(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    file = tmp_path / "triplets.csv"
    words = ["red", "green", "blue", "gray", "pink", "gold"]
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "positive", "negative"])
        for i in range(64):
            one, two = words[i % 6], words[i // 6 % 6]
            writer.writerow([f"a {one} {two} {i % 50}", f"the {one} {two} {i}", f"no {two} {i}"])
    made = recipe_texts.load(
        "topics",
        [
            f"data.path={file}", "data.positive=positive", "data.negative=negative", "epochs=1",
            "encoder.width=32", "encoder.heads=2", "encoder.vocabulary=300", "batch_size=16",
            "monitor_every=0",
        ],
    )  # fmt: skip
    result = diagnose_run(train(made, tmp_path / "run", compute=HERE), items=64)
    # 15 others and 16 hard negatives, less the duplicates of the sentences that occur twice.
    assert 29 < result["hard negatives"].evidence["negatives"] <= 31
    assert "tolerance" not in result["hard negatives"].evidence
    assert all(name.startswith("a ") for name in result["gradient reduction"].evidence["smallest"])
    assert "images" not in str(result.advice)  # a study of another modality is not cited


@pytest.mark.parametrize(
    ("name", "needs", "overrides"),
    [
        ("atlas", "torch_geometric", ()),
        ("chembl", "rdkit", ("data.limit=150", "batch_size=64", "encoder.hidden=16")),
    ],
)
def test_graphs_and_molecules(
    tmp_path: Path, name: str, needs: str, overrides: tuple[str, ...]
) -> None:
    pytest.importorskip(needs)
    made = recipe_texts.load(name, ["epochs=1", "monitor_every=0", *overrides])
    result = diagnose_run(train(made, tmp_path / "run", compute=HERE), items=128)
    assert result["hard negatives"].evidence["negatives"] == made.batch_size - 1
    assert result["temperature"].evidence["range"] == pytest.approx(
        (0.5 * made.loss.temperature, 1.5 * made.loss.temperature)
    )


def test_the_command_prints_and_writes(
    run_of: RunOf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_of("simclr").folder
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(sys, "argv", ["macl", "diagnose", str(folder), "--items", "64"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    shown = capsys.readouterr()
    assert "gradient reduction" in shown.out
    verdict = diagnose_run(Run.open(folder), items=64).verdict
    assert verdict in shown.out[: shown.out.index("finding")]
    assert f"written: {folder / 'diagnosis.json'}" in shown.err
    written = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(diagnose_run(Run.open(folder), items=64).as_dict()))
