"""Loggers by name, and objects that a caller brings to a training."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from macl import modalities
from macl.core.errors import UserError
from macl.modalities.splits import Subset
from macl.training import metrics
from macl.training.fit import train
from tiny import HERE, recipe, state_of

QUICK = ("epochs=1", "data.limit=70", "monitor_every=1")
"""Two steps."""


def test_tensorboard_has_every_row_of_a_short_run(tmp_path: Path) -> None:
    run = train(recipe(*QUICK), tmp_path / "run", compute=HERE)
    events = EventAccumulator(str(run.folder))
    events.Reload()
    (row,) = run.metrics()
    names = {"loss", "info_nce", "alignment", "temperature", "gradient_scale", "lr", "monitor"}
    assert names <= set(events.Tags()["scalars"])
    for name in names:
        (event,) = events.Scalars(name)
        assert (event.step, event.value) == (2, pytest.approx(row[name], rel=1e-6))
    assert not (run.folder / "hparams.yaml").exists()


def test_no_logger_but_the_file(tmp_path: Path) -> None:
    run = train(recipe(*QUICK, "loggers=[]"), tmp_path / "run", compute=HERE)
    assert run.metrics()
    assert not list(run.folder.glob("events*"))


def test_loggers_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    run = train(recipe(*QUICK), tmp_path / "run", compute=HERE)
    train(recipe(*QUICK, "loggers=[]"), run.folder, resume=True, compute=HERE)


def missing(name: str) -> bool:
    return importlib.util.find_spec(name) is None


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_names_its_extra(name: str, tmp_path: Path) -> None:
    if not missing(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(UserError, match=rf"macl\[{name}\]"):
        train(recipe(*QUICK, f"loggers=[{name}]"), tmp_path / "run", compute=HERE)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(missing("wandb"), reason="needs the extra 'wandb'")
def test_wandb_writes_offline(tmp_path: Path) -> None:
    run = train(recipe(*QUICK, "loggers=[wandb]"), tmp_path / "run", compute=HERE)
    assert list(run.folder.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.skipif(missing("mlflow"), reason="needs the extra 'mlflow'")
def test_mlflow_writes_into_the_run(tmp_path: Path) -> None:
    run = train(recipe(*QUICK, "loggers=[mlflow]"), tmp_path / "run", compute=HERE)
    (file,) = run.folder.glob("mlruns/*/*/metrics/loss")
    assert float(file.read_text().split()[1]) == pytest.approx(run.metrics()[0]["loss"], rel=1e-5)


def test_every_name_of_the_recipe_has_a_logger(tmp_path: Path) -> None:
    from typing import get_args

    from macl.recipes import Recipe

    names = get_args(get_args(Recipe.model_fields["loggers"].annotation)[0])
    assert set(names) == {"tensorboard", "wandb", "mlflow"}
    for name in names:
        if name == "tensorboard" or not missing(name):
            built = metrics._build(name, recipe(*QUICK), tmp_path)
            assert type(built).__name__.lower().startswith(name)


def test_callbacks_and_loggers_of_the_caller(tmp_path: Path) -> None:
    seen: list[float] = []

    class Noting(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
            seen.append(trainer.callback_metrics["loss"].item())

    logger = CSVLogger(tmp_path / "mine")
    run = train(
        recipe(*QUICK), tmp_path / "run", compute=HERE, callbacks=[Noting()], loggers=[logger]
    )
    assert seen == [pytest.approx(run.metrics()[0]["loss"], rel=1e-6)]
    assert "loss" in (Path(logger.log_dir) / "metrics.csv").read_text()


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def test_a_data_set_and_an_encoder_of_the_caller(tmp_path: Path) -> None:
    made = recipe(*QUICK)
    chosen = Subset(modalities.get("images").load(made.data, "train"), torch.arange(40))
    encoder = Flat()
    with pytest.raises(UserError, match="out_dim"):
        train(made, tmp_path / "run", compute=HERE, encoder=encoder)
    encoder.out_dim = 12
    before = encoder.linear.weight.detach().clone()
    run = train(made, tmp_path / "run", compute=HERE, dataset=chosen, encoder=encoder)
    assert state_of(run)["data"]["samples"] == 40
    assert run.metrics()[-1]["step"] == 1
    assert not torch.equal(encoder.linear.weight, before)
    stored = state_of(run)["state_dict"]["method.encoder.linear.weight"]
    assert torch.equal(stored, encoder.linear.weight)
