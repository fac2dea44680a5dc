"""Around the training steps: checkpoints, signals, and a quick evaluation every few epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import nn

from macl import distributed
from macl.core.signals import Interrupted, StopSignals
from macl.probes.score import Score
from macl.training.metrics import MetricsFile
from macl.training.nonfinite import checks_every_step


def last_batch(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether this batch is the epoch's last."""
    return batch_idx + 1 == trainer.num_training_batches


class SaveLast(pl.Callback):
    """Writes last.ckpt every few steps and after every epoch, and when a signal asks to stop.

    SIGINT and SIGTERM take effect after the step under way, with a checkpoint; a second SIGINT
    interrupts at once. Several processes with GPUs compare signals when a row is logged. A step is
    complete when the optimiser has moved: gradients that are still being accumulated are in no
    checkpoint.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every
        self.signals = StopSignals()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the signal handlers."""
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
        # The end of an epoch is saved below, after the monitor has run.
        if last_batch(trainer, batch_idx) or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        stop = self._may_ask(trainer, pl_module, batch_idx) and self._stop(trainer)
        if stop or trainer.global_step % self.every == 0:
            self._save(trainer, stop)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; stop when asked."""
        self._save(trainer, self._stop(trainer))

    def _may_ask(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch_idx: int) -> bool:
        """Whether processes compare signals now; off the CPU a step would wait for the others."""
        alone = trainer.world_size == 1 or checks_every_step(pl_module.device)
        return alone or pl_module.is_logged(batch_idx)  # type: ignore[operator]

    def _stop(self, trainer: pl.Trainer) -> bool:
        """Whether any process got a signal to stop: all must leave after the same step."""
        return distributed.any_rank(self.signals.asked is not None)

    def _save(self, trainer: pl.Trainer, stop: bool) -> None:
        trainer.save_checkpoint(self.path)
        if stop:
            raise Interrupted(self.signals.asked or "a signal to another process")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the signal handlers, before Lightning restores its own."""
        self.signals.release()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Restore the signal handlers."""
        self.signals.release()


class Monitor(pl.Callback):
    """A quick evaluation of the encoder every few epochs or steps, written to metrics.csv.

    Args:
        look: evaluates the encoder; None where it finds nothing to evaluate on.
        every: epochs between evaluations.
        metrics: where the score is written.
        on_best: called with the encoder at each new best score, to keep it too.
        steps: optimiser steps between further evaluations within epochs; 0 for none.
        check: called before each on every process; raises where training went wrong.
    """

    def __init__(
        self,
        look: Callable[[nn.Module], Score | None],
        every: int,
        metrics: MetricsFile,
        on_best: Callable[[nn.Module], None],
        steps: int = 0,
        check: Callable[[pl.Trainer], None] = lambda trainer: None,
    ) -> None:
        self.look, self.every, self.metrics, self.on_best = look, every, metrics, on_best
        self.steps, self.check = steps, check
        self.best = float("-inf")

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Evaluate when a number of steps has passed; the end of an epoch has its own."""
        unfinished = (batch_idx + 1) % trainer.accumulate_grad_batches
        if not self.steps or unfinished or last_batch(trainer, batch_idx):
            return
        if trainer.global_step % self.steps == 0:
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate when a number of epochs has passed, and after the last one."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every == 0 or epoch == trainer.max_epochs:
            self._evaluate(trainer, pl_module)

    def _evaluate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate, log, keep the best."""
        self.check(trainer)
        if not trainer.is_global_zero:
            return
        encoder: nn.Module = pl_module.method.encoder  # type: ignore[union-attr, assignment]
        score = self.look(encoder)
        if score is None:
            return
        self.metrics.write(trainer, {"monitor": score.value})
        if score.value > self.best:
            self.best = score.value
            self.on_best(encoder)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.best = state_dict["best"]
