"""A mean of the encoder's weights, and stopping early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

import macl

SMALL: dict[str, Any] = {
    "epochs": 2, "encoder.width": 4, "data.limit": 128, "batch_size": 32, "monitor_every": 0,
    "schedule.warmup_epochs": 0,
}  # fmt: skip


class Weights(pl.Callback):
    """Copies the first layer after every step."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        self.seen.append(pl_module.method.encoder.conv1.weight.detach().double().clone())


def test_the_run_ends_with_the_mean_of_the_weights(tmp_path: Path) -> None:
    spy = Weights()
    run = macl.train(
        "digits", out=tmp_path / "run", overrides=SMALL | {"ema": 0.7}, callbacks=[spy]
    )
    mean = spy.seen[0]
    for weights in spy.seen[1:]:
        mean = 0.7 * mean + 0.3 * weights
    assert len(spy.seen) == 8
    torch.testing.assert_close(run.encoder.conv1.weight.double(), mean, atol=1e-6, rtol=1e-5)


def test_a_resumed_training_goes_on_with_its_mean(tmp_path: Path) -> None:
    constant = SMALL | {"ema": 0.7, "schedule": {"name": "constant"}}
    for name, epochs in (("parts", 1), ("parts", 2), ("whole", 2)):
        folder = tmp_path / name
        run = macl.train("digits", out=folder, resume=folder.exists(),
                         overrides=constant | {"epochs": epochs})  # fmt: skip
    parts = macl.Run.open(tmp_path / "parts").encoder.state_dict()
    assert all(torch.equal(value, parts[name]) for name, value in run.encoder.state_dict().items())


def test_a_run_killed_after_its_last_step_gets_its_mean_on_resume(tmp_path: Path) -> None:
    settings = SMALL | {"epochs": 1, "ema": 0.7}
    run = macl.train("digits", out=tmp_path / "run", overrides=settings)
    encoder = run.folder / "encoder.safetensors"
    written = encoder.read_bytes()
    encoder.unlink()
    macl.train("digits", out=tmp_path / "run", overrides=settings, resume=True)
    assert encoder.read_bytes() == written


def test_training_stops_where_the_monitored_score_does_not_rise(tmp_path: Path) -> None:
    still = SMALL | {"epochs": 9, "monitor_every": 1, "patience": 2, "optimizer.lr": 0.0}
    run = macl.train("digits", out=tmp_path / "run", overrides=still)
    scores = [row["monitor"] for row in run.metrics() if row["monitor"] == row["monitor"]]
    assert len(scores) < 9
    assert scores.index(max(scores)) == len(scores) - 3
