"""The examples run, and give the numbers of macl or of the other library where they can."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import lightning
import pytest

import macl
from tiny import environment

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_learning(losses: list[float]) -> bool:
    """Finite, and lower in the last quarter than in the first."""
    part = max(1, len(losses) // 4)
    assert all(map(math.isfinite, losses))
    return sum(losses[-part:]) < sum(losses[:part])


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"`{path.name}`" in listed


@pytest.mark.slow
def test_lightning_gives_the_numbers_of_macl_train(tmp_path: Path) -> None:
    small = {"data.limit": 256, "encoder.width": 16}
    losses = example("lightning_module").train(epochs=2, **small)
    run = macl.train("digits", out=tmp_path / "run", epochs=2, monitor_every=0, overrides=small)
    rows = run.metrics()
    assert len(rows) >= 2
    assert len(losses) == rows[-1]["step"]
    for row in rows:
        assert losses[int(row["step"]) - 1] == pytest.approx(row["loss"], rel=1e-6)


@pytest.mark.slow
def test_lightly_gives_the_numbers_of_its_own_loss() -> None:
    theirs = pytest.importorskip("lightly.loss", reason="needs lightly")
    module = example("lightly_simclr")
    lightning.seed_everything(0, verbose=False)  # the transform also draws from numpy
    views = module.digits(128)
    # The loss at the start and after a step: later ones depend on rounding, which grows.
    ours = module.train(module.NTXentLoss(temperature=0.1), views, epochs=1)
    others = module.train(theirs.NTXentLoss(temperature=0.1), views, epochs=1)
    assert ours == pytest.approx(others, 1e-4)
    assert ours != pytest.approx(module.train(macl.MACL(0.1), views, epochs=1), 1e-2)


@pytest.mark.slow
def test_pytorch_metric_learning_gives_the_numbers_of_its_own_loss() -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.losses", reason="needs its library")
    module = example("pytorch_metric_learning_trainer")
    ours = module.train(module.ContrastiveLoss(macl.NTXent(0.1)), epochs=1)
    assert ours == pytest.approx(module.train(theirs.NTXentLoss(temperature=0.1), epochs=1), 1e-3)
    assert is_learning(ours)


@pytest.mark.slow
def test_sentence_transformers_logs_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra 'text'")
    rows = example("sentence_transformers_trainer").train(tmp_path, steps=40)
    assert len(rows) == 8
    assert is_learning([row["loss"] for row in rows])
    assert -1 <= rows[-1]["alignment"] <= 1


def test_the_example_of_chunks_runs_as_a_script() -> None:
    script = [sys.executable, str(EXAMPLES / "own_loop_cached.py")]
    done = subprocess.run(script, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("chunk=")


def test_chunks_give_the_numbers_of_the_plain_loop() -> None:
    train = example("own_loop_cached").train
    assert train(64) == pytest.approx(train(None), rel=1e-3)
    assert is_learning(train(64))


@pytest.mark.slow
def test_open_clip_gives_the_numbers_of_its_own_loss() -> None:
    theirs = pytest.importorskip("open_clip.loss", reason="needs open_clip")
    module = example("open_clip_loss")
    ours = module.train(module.ClipLoss(), steps=3)
    assert ours == pytest.approx(module.train(theirs.ClipLoss(), steps=3), rel=1e-3)


@pytest.mark.slow
def test_mined_triplets_are_read_by_others(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra 'text'")
    file = example("mine_negatives").mine(tmp_path, count=60)
    rows = datasets.Dataset.from_json(str(file), cache_dir=str(tmp_path / "cache"))
    assert rows.column_names == ["anchor", "positive", "negative"]
    assert len(rows) >= 60
    macl.train(
        "topics",
        epochs=1,
        out=tmp_path / "again",
        overrides={
            "data.path": file,
            "data.column": "anchor",
            "data.positive": "positive",
            "data.negative": "negative",
            "loss.negatives": "cross",
            "encoder.width": 16,
            "encoder.layers": 1,
            "batch_size": 16,
        },
        monitor_every=0,
    )


@pytest.mark.slow
def test_transformers_trains(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    rows = example("transformers_trainer").train(tmp_path, steps=10)
    assert is_learning([row["loss"] for row in rows])


@pytest.mark.slow
def test_pyg_trains() -> None:
    pytest.importorskip("torch_geometric", reason="needs the extra 'graphs'")
    assert is_learning(example("pyg_loop").train())


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one() -> None:
    def losses(*launcher: str) -> list[float]:
        done = subprocess.run(
            [sys.executable, *launcher, str(EXAMPLES / "torch_ddp.py")],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return [float(word) for word in done.stdout.split()]

    one = losses()
    two = losses("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert len(one) == 10
    assert two == pytest.approx(one, abs=2e-5)
