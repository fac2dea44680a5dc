"""Runs that are made longer, and runs whose recipe was changed after training."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
import yaml

import recipe_texts
from macl import recipes
from macl.core.errors import UserError
from macl.core.signals import Interrupted
from macl.optim import learning_rate_factor
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, METHODS, recipe, state_of

QUICK = ("data.limit=70", "monitor_every=1")
"""Two steps an epoch."""


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_run_is_trained_on(method: str, tmp_path: Path) -> None:
    run = train(recipe(*QUICK, *METHODS[method], "epochs=2"), tmp_path, compute=HERE)
    first, before = run.metrics(), run.encoder.conv1.weight.clone()
    run.results_file.write_text(json.dumps({"scores": []}))
    made = recipe(*QUICK, *METHODS[method], "epochs=4")
    longer = train(made, tmp_path, resume=True, compute=HERE)
    rows = longer.metrics()
    assert rows[: len(first)] == first
    assert [row["step"] for row in rows] == [2, 4, 6, 8]
    assert state_of(longer)["global_step"] == 8
    assert longer.is_finished
    assert Run(tmp_path).recipe.epochs == 4
    assert not torch.equal(longer.encoder.conv1.weight, before)
    # What was measured on the shorter run's encoder is kept under another name.
    assert not longer.results_file.exists()
    assert (tmp_path / "results-2-epochs.json").is_file()


def test_the_schedule_is_that_of_the_new_length(tmp_path: Path) -> None:
    train(recipe(*QUICK, "epochs=2"), tmp_path, compute=HERE)
    made = recipe(*QUICK, "epochs=4")
    rates: list[float] = []

    import lightning.pytorch as pl

    class Rates(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    train(made, tmp_path, resume=True, compute=HERE, callbacks=[Rates()])
    warmup = round(made.schedule.warmup_epochs * 2)
    expected = [
        made.optimizer.lr * learning_rate_factor(made.schedule, step, 8, warmup)
        for step in range(4, 8)
    ]
    assert rates == pytest.approx(expected)
    assert rates[0] > made.optimizer.lr * 0.3  # and not the 0 at which the short cosine ended


def test_an_interrupted_extension_is_unfinished_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile = ("encoder.width=null", "encoder.name=fragile:resnet", "encoder.allow_import=true")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        train(recipe(*QUICK, *fragile, "epochs=1"), folder, compute=HERE)
    made = recipe(*QUICK, *fragile, "epochs=3")
    expected = train(made, whole, resume=True, compute=HERE)
    with monkeypatch.context() as patch:
        patch.setenv("FRAGILE_AT", "1")
        patch.setenv("FRAGILE_SIGNAL", str(int(signal.SIGINT)))
        with pytest.raises(Interrupted):
            train(made, cut, resume=True, compute=HERE)
    assert not Run(cut).is_finished
    resumed = train(Run(cut).recipe, cut, resume=True, compute=HERE)
    assert resumed.metrics_file.read_text() == expected.metrics_file.read_text()


def test_other_changes_are_refused_by_name(tmp_path: Path) -> None:
    run = train(recipe(*QUICK, "epochs=1"), tmp_path, compute=HERE)
    for texts, words in (
        (("epochs=2", "loss.alpha=0.9"), r"\(loss.alpha: 0.5 there, 0.9 now\)"),
        (("epochs=1", "optimizer.lr=0.5"), r"\(optimizer.lr: 0.001 there, 0.5 now\)"),
        (("epochs=0",), r"\(epochs: 1 there, 0 now\)"),
    ):
        with pytest.raises(UserError, match=f"another recipe {words}"):
            train(recipe(*QUICK, *texts), tmp_path, resume=True, compute=HERE)
    run.last_checkpoint.unlink()
    with pytest.raises(UserError, match=r"last\.ckpt is missing"):
        train(recipe(*QUICK, "epochs=2"), tmp_path, resume=True, compute=HERE)


def test_an_edited_recipe_file_is_no_excuse(tmp_path: Path) -> None:
    """The checkpoint says what was trained; recipe.yaml may have been changed since."""
    run = train(recipe(*QUICK, "epochs=1"), tmp_path, compute=HERE)
    values = yaml.safe_load(run.recipe_file.read_text())
    values["loss"]["temperature"] = 0.7
    run.recipe_file.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"loss.temperature: 0.1 there, 0.7 now"):
        train(Run(tmp_path).recipe, tmp_path, resume=True, compute=HERE)


def test_one_epoch_trains_with_a_shorter_warm_up(tmp_path: Path) -> None:
    """The recipe's own warm-up of one epoch is shortened; one that a user asks for is refused."""
    made = recipe_texts.load("digits", ["epochs=1", "data.limit=70", "batch_size=32"])
    assert made.schedule.warmup_epochs == pytest.approx(0.1)
    assert train(made, tmp_path / "run", compute=HERE).is_finished
    assert recipes.load("digits").schedule.warmup_epochs == 1
    assert recipes.load("digits", {"epochs": 0}).schedule.warmup_epochs == 1
    for texts in (["schedule.warmup_epochs=1"], ["schedule={name: cosine, warmup_epochs: 2}"]):
        with pytest.raises(UserError, match=r"schedule\.warmup_epochs=.*raise epochs"):
            recipe_texts.load("digits", ["epochs=1", *texts])
