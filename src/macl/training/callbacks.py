"""What happens around training: metrics on file, checkpoints, a quick look now and then."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import nn

from macl.core.files import atomic_write
from macl.core.signals import Interrupted, StopSignals
from macl.probes.score import Score

COLUMNS = (
    "step",
    "epoch",
    "loss",
    "info_nce",
    "alignment",
    "temperature",
    "gradient_scale",
    "floored",
    "lr",
    "monitor",
)


def last_batch(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether this batch is the epoch's last."""
    return batch_idx + 1 == trainer.num_training_batches


class MetricsFile(pl.Callback):
    """A row in metrics.csv whenever the module logs. A resumed run drops the rows it redoes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep what lies before the checkpoint, write the header."""
        if not trainer.is_global_zero:
            return
        rows: list[dict[str, str]] = []
        if trainer.global_step and self.path.is_file():
            with self.path.open(newline="") as file:
                rows = [
                    r for r in csv.DictReader(file) if int(r["step"] or 0) <= trainer.global_step
                ]
        kept = io.StringIO(newline="")
        writer = csv.DictWriter(kept, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(self.path, lambda file: file.write(kept.getvalue().encode()))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """One row every few steps and one at the end of each epoch."""
        if pl_module.is_logged(batch_idx):  # type: ignore[operator]
            self.write(trainer, {})

    def write(self, trainer: pl.Trainer, more: dict[str, float]) -> None:
        """Append the current figures, and `more`."""
        if not trainer.is_global_zero:
            return
        values: dict[str, float | int] = {k: float(v) for k, v in trainer.callback_metrics.items()}
        values |= {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **more,
        }
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, extrasaction="ignore").writerow(
                {k: f"{v:.8g}" if isinstance(v, float) else v for k, v in values.items()}
            )


class SaveLast(pl.Callback):
    """Writes last.ckpt every few steps and after every epoch, and when the process is told to stop.

    SIGINT and SIGTERM are answered after the step under way, with a checkpoint; a second SIGINT
    interrupts at once. A step is complete when the optimiser has moved: gradients that are still
    being accumulated are in no checkpoint.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every
        self.signals = StopSignals()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen to signals."""
        self.signals.listen()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save when due; stop when asked."""
        # The end of an epoch is saved below, once the monitor has had its look.
        if last_batch(trainer, batch_idx) or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        stop = self._stop(trainer)
        if stop or trainer.global_step % self.every == 0:
            self._save(trainer, stop)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; stop when asked."""
        self._save(trainer, self._stop(trainer))

    def _stop(self, trainer: pl.Trainer) -> bool:
        """Whether any process was told to stop: all must leave after the same step."""
        return trainer.strategy.reduce_boolean_decision(self.signals.asked is not None, all=False)

    def _save(self, trainer: pl.Trainer, stop: bool) -> None:
        trainer.save_checkpoint(self.path)
        if stop:
            raise Interrupted(self.signals.asked or "a signal to another process")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the signals back, before Lightning does the same with its own."""
        self.signals.release()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back."""
        self.signals.release()


class Monitor(pl.Callback):
    """A quick look at the embedding every few epochs or steps, written to metrics.csv.

    Args:
        look: judges the encoder; None when there is nothing to judge by.
        every: epochs between looks.
        metrics: where the figure goes.
        on_best: called with the encoder at each new best, to keep it too.
        steps: optimiser steps between further looks within epochs; 0 for none.
    """

    def __init__(
        self,
        look: Callable[[nn.Module], Score | None],
        every: int,
        metrics: MetricsFile,
        on_best: Callable[[nn.Module], None],
        steps: int = 0,
    ) -> None:
        self.look, self.every, self.metrics, self.on_best = look, every, metrics, on_best
        self.steps = steps
        self.best = float("-inf")

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Look when the steps say so; the end of an epoch has its own look."""
        unfinished = (batch_idx + 1) % trainer.accumulate_grad_batches
        if not self.steps or unfinished or last_batch(trainer, batch_idx):
            return
        if trainer.global_step % self.steps == 0:
            self._judge(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look when the epochs say so, and after the last one."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every == 0 or epoch == trainer.max_epochs:
            self._judge(trainer, pl_module)

    def _judge(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look, log, remember the best."""
        if not trainer.is_global_zero:
            return
        encoder: nn.Module = pl_module.method.encoder  # type: ignore[union-attr, assignment]
        score = self.look(encoder)
        if score is None:
            return
        self.metrics.write(trainer, {"monitor": score.value})
        for logger in trainer.loggers:
            logger.log_metrics({"monitor": score.value}, step=trainer.global_step)
        if score.value > self.best:
            self.best = score.value
            self.on_best(encoder)

    def state_dict(self) -> dict[str, Any]:
        """The best so far belongs in the checkpoint."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.best = state_dict["best"]
