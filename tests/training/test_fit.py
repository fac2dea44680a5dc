"""From a recipe to a run folder, and errors on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from macl.core.errors import UserError
from macl.core.launch import launched_rank
from macl.runs import Run
from macl.training.fit import Compute, train
from payload import Payload
from shared import trained
from tiny import HERE, recipe, state_of

QUICK = ("epochs=1", "data.limit=70", "monitor_every=1")


@pytest.fixture(scope="module")
def run() -> Run:
    return trained(recipe(*QUICK))


def test_a_run_is_a_folder(run: Run) -> None:
    names = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    events = {name for name in names if name.startswith("events.out.tfevents")}
    assert len(events) == 1
    assert names - events >= {
        "recipe.yaml", "metrics.csv", "encoder.safetensors", "checkpoints/last.ckpt",
        "best/encoder.safetensors",
    }  # fmt: skip
    assert not any(".partial" in name for name in names)
    assert run.is_finished
    assert run.recipe == recipe(*QUICK)
    with safe_open(run.folder / "encoder.safetensors", framework="pt") as file:
        assert file.metadata()["recipe"] == "digits"


def test_the_encoder_file_holds_the_trained_encoder(run: Run) -> None:
    state = state_of(run)["state_dict"]
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, state[f"method.encoder.{name}"]), name
    assert not run.encoder.training


def test_resuming_a_finished_run_changes_nothing(run: Run) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.folder.rglob("*")}
    train(run.recipe, run.folder, resume=True, compute=HERE)
    assert {p: p.stat().st_mtime_ns for p in run.folder.rglob("*")} == before


def test_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not empty.*`resume=True`"):
        train(run.recipe, run.folder, compute=HERE)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        train(recipe(*QUICK), tmp_path, resume=True, compute=HERE)
    with pytest.raises(UserError, match="is a file"):
        train(recipe(*QUICK), tmp_path / "notes.txt", compute=HERE)


def test_a_run_is_resumed_with_its_own_recipe_only(run: Run) -> None:
    with pytest.raises(UserError, match=r"another recipe \(loss.alpha: 0.5 there, 0.9 now\)"):
        train(recipe(*QUICK, "loss.alpha=0.9"), run.folder, resume=True, compute=HERE)


def test_how_a_run_is_watched_may_change(tmp_path: Path) -> None:
    """A mistake in what is no part of the training is repaired by resuming with another value."""
    wrong = recipe(*QUICK, "evaluation.k=3", "monitor_steps=1")
    Run.create(tmp_path / "run", wrong)
    right = recipe(*QUICK, "evaluation.k=5", "monitor_every=0", "workers=1")
    run = train(right, tmp_path / "run", resume=True, compute=HERE)
    assert run.is_finished
    assert Run(run.folder).recipe == run.recipe == right


@pytest.mark.parametrize(
    ("overrides", "devices", "words"),
    [
        (("data.limit=20",), 1, "more than the 20 training samples"),
        (("batch_size=32",), 3, "cannot be dealt out evenly to 3 processes"),
        (("loss.floor=5",), 1, "floor 5 lies above the temperature"),
        (("encoder.name=resnet9", "encoder.width=null"), 1, "no image encoder is called 'resnet9'"),
    ],
)
def test_a_mistake_leaves_no_folder_behind(
    overrides: tuple[str, ...], devices: int, words: str, tmp_path: Path
) -> None:
    """So that the corrected command can be given again as it was."""
    compute = Compute(devices=devices, accelerator="cpu", progress=False)
    with pytest.raises(UserError, match=words):
        train(recipe(*overrides), tmp_path / "run", compute=compute)
    assert not (tmp_path / "run").exists()


def test_an_endless_warm_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="warm-up"):
        train(recipe(*QUICK, "schedule.warmup_epochs=3"), tmp_path / "run", compute=HERE)


def test_an_evil_checkpoint_is_not_resumed_from(tmp_path: Path) -> None:
    run, trace = Run.create(tmp_path / "run", recipe(*QUICK)), tmp_path / "trace"
    run.last_checkpoint.parent.mkdir()
    torch.save({"state_dict": Payload(trace)}, run.last_checkpoint)
    with pytest.raises(UserError, match="not a checkpoint that can be read safely"):
        train(run.recipe, run.folder, resume=True, compute=HERE)
    assert not trace.exists()


def launched_with(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")  # fmt: skip
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": "5", "LOCAL_RANK": "1"}, 5),
        ({"SLURM_PROCID": "3"}, 3),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, 1),
        ({"NODE_RANK": "1"}, 8),  # Lightning's own launch: the first process of the second node
        ({"NODE_RANK": "1", "LOCAL_RANK": "3", "WORLD_SIZE": "16"}, 11),
    ],
)
def test_the_rank_is_what_the_launcher_says(
    variables: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched_with(variables, monkeypatch)
    assert launched_rank(devices=8) == rank
    assert (launched_rank() == 0) == (rank == 0)


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("variables", "asked", "settled"),
    [
        ({}, (0, 0), (1, 1)),
        ({}, (2, 0), (2, 1)),
        (TORCHRUN, (0, 0), (4, 2)),
        (TORCHRUN, (4, 2), (4, 2)),
        (SRUN, (0, 0), (4, 2)),
        ({"SLURM_STEP_NUM_TASKS": "1"}, (2, 0), (2, 1)),  # a shell, from which Lightning starts two
        ({"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"}, (2, 2), (2, 2)),
    ],
)
def test_processes_are_those_that_were_launched(
    variables: dict[str, str],
    asked: tuple[int, int],
    settled: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched_with(variables, monkeypatch)
    compute = Compute(*asked).settled()
    assert (compute.devices, compute.nodes) == settled


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN])
def test_other_processes_than_were_launched_are_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched_with(variables, monkeypatch)
    with pytest.raises(UserError, match=r"8 processes.* ask for 2.*`devices=4` `nodes=2`"):
        train(recipe(*QUICK), tmp_path / "run", compute=Compute(devices=2))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write.*Not a directory"):
        train(recipe(*QUICK), tmp_path / "file" / "run", compute=HERE)
