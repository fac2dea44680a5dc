"""Lines that show that a long command is working, off a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LambdaCallback

from macl import modalities
from macl.cli.console import message
from macl.core.progress import SECONDS
from macl.recipes import Recipe


class Announce(pl.Callback):
    """Says what is trained, and where, once everything was checked and training begins."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.protocols: tuple[str, ...] | None = None
        """By which the run can be evaluated; None: it was not trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See what the data permits."""
        dataset = trainer.train_dataloader.dataset.dataset  # type: ignore[union-attr]
        modality = modalities.get(self.recipe.modality)
        self.protocols = modality.runnable_protocols(self.recipe.evaluation, dataset)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the message."""
        message(f"training {self.recipe.name} into {self.folder}")


def progress_lines(
    seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
) -> pl.Callback:
    """Prints epoch, step and loss after the first batch and then every `seconds`."""
    due = -float("inf")

    def show(trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        nonlocal due
        if clock() < due:
            return
        due = clock() + seconds
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        shown = "" if loss is None else f", loss {float(loss):.3f}"
        epoch = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        message(f"{epoch}, step {trainer.global_step}{shown}")

    return LambdaCallback(on_train_batch_end=show)
