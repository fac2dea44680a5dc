"""Around the training steps: checkpoints, signals, and a quick evaluation every few epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from macl import distributed
from macl.core.signals import Interrupted, StopSignals
from macl.probes.score import Score
from macl.training.journal import Journal
from macl.training.metrics import MetricsFile
from macl.training.nonfinite import checks_every_step


def last_batch(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether this batch is the epoch's last."""
    return batch_idx + 1 == trainer.num_training_batches


class SaveLast(pl.Callback):
    """Writes last.ckpt every few steps and after every epoch, and when a signal asks to stop.

    In a SLURM job SIGUSR1 does so too, and asks SLURM to start the job again.
    SIGINT and SIGTERM take effect after the step under way, with a checkpoint; a second SIGINT
    interrupts at once. Several processes with GPUs compare signals when a row is logged. A step is
    complete when the optimiser has moved: gradients that are still being accumulated are in no
    checkpoint.
    """

    def __init__(
        self, journal: Journal, path: Path, every: int, minutes: float | None = None
    ) -> None:
        self.journal, self.path, self.every, self.minutes = journal, path, every, minutes
        self.saved_at, self.saved_step = time.monotonic(), -1
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
        may_ask = self._may_ask(trainer, pl_module, batch_idx)
        stop = may_ask and self._stop()
        due = trainer.global_step % self.every == 0 or trainer.should_stop
        if stop or due or (may_ask and self._is_due()):
            self._save(trainer, stop)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; stop when asked."""
        # What ends within an epoch is saved by then: there a longer training goes on.
        if self.saved_step != trainer.global_step:
            self._save(trainer, self._stop())

    def _may_ask(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch_idx: int) -> bool:
        """Whether processes compare signals now; off the CPU a step would wait for the others."""
        alone = trainer.world_size == 1 or checks_every_step(pl_module.device)
        return alone or self.journal.is_logged(batch_idx)

    def _stop(self) -> bool:
        """Whether any process got a signal to stop: all must leave after the same step."""
        return distributed.any_rank(self.signals.asked is not None)

    def _is_due(self) -> bool:
        """Whether the last checkpoint is too old by any process' clock."""
        if self.minutes is None:
            return False
        return distributed.any_rank(time.monotonic() - self.saved_at > 60 * self.minutes)

    def _save(self, trainer: pl.Trainer, stop: bool) -> None:
        trainer.save_checkpoint(self.path)
        self.saved_at, self.saved_step = time.monotonic(), trainer.global_step
        if stop:
            if trainer.is_global_zero:
                self.signals.requeue()
            raise Interrupted(self.signals.asked or "a signal to another process")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the signal handlers, before Lightning restores its own."""
        self.signals.release()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Restore the signal handlers."""
        self.signals.release()


class FrozenStatistics(pl.Callback):
    """Keeps the encoder's batch normalization in evaluation mode, with the statistics it has."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the mode, which an evaluation in between may have changed."""
        encoder: nn.Module = pl_module.method.encoder  # type: ignore[union-attr, assignment]
        for module in encoder.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


class AveragedWeights(pl.Callback):
    """Keeps a running mean of the encoder's weights, which are the encoder's when training ends.

    The statistics of batch normalization are averaged too; what counts is copied.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """mean ← decay · mean + (1 − decay) · weights, after an optimizer step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not last_batch(trainer, batch_idx):
            return
        encoder: nn.Module = pl_module.method.encoder  # type: ignore[union-attr, assignment]
        for name, value in encoder.state_dict().items():
            mean = self.mean.setdefault(name, value.clone()).to(value.device)
            averaged = mean.lerp(value, 1 - self.decay) if value.is_floating_point() else value
            self.mean[name] = averaged.clone()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the means in place, after the last checkpoint, which has the weights themselves."""
        encoder: nn.Module = pl_module.method.encoder  # type: ignore[union-attr, assignment]
        if self.mean:
            encoder.load_state_dict(self.mean)

    def state_dict(self) -> dict[str, Any]:
        """The means so far."""
        return self.mean

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.mean = state_dict


class Monitor(pl.Callback):
    """A quick evaluation of the encoder every few epochs or steps, written to metrics.csv.

    Args:
        look: evaluates the encoder: a score, None where it finds nothing to evaluate on, and
            figures that need no labels. Every process calls it, so that none waits for another.
        every: epochs between evaluations.
        metrics: where the score is written.
        on_best: called with the encoder at each new best score, to keep it too.
        steps: optimiser steps between further evaluations within epochs; 0 for none.
        check: called before each on every process; raises where training went wrong.
        patience: evaluations without a new best score after which training stops; 0: never.
    """

    def __init__(
        self,
        look: Callable[[nn.Module], tuple[Score | None, dict[str, float]]],
        every: int,
        metrics: MetricsFile,
        on_best: Callable[[nn.Module], None],
        steps: int = 0,
        check: Callable[[pl.Trainer], None] = lambda trainer: None,
        patience: int = 0,
    ) -> None:
        self.look, self.every, self.metrics, self.on_best = look, every, metrics, on_best
        self.steps, self.check = steps, check
        self.best, self.patience, self.since_best = float("-inf"), patience, 0

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
        """Evaluate, log, keep the best; stop on every process where none came for long."""
        self.check(trainer)
        encoder: nn.Module = pl_module.whole_encoder()  # type: ignore[operator]
        score, figures = self.look(encoder)
        if trainer.is_global_zero:
            self._record(trainer, encoder, score, figures)
        if self.patience and distributed.any_rank(self.since_best >= self.patience):
            trainer.should_stop = True

    def _record(
        self,
        trainer: pl.Trainer,
        encoder: nn.Module,
        score: Score | None,
        figures: dict[str, float],
    ) -> None:
        values = figures if score is None else {**figures, "monitor": score.value}
        if values:
            self.metrics.write(trainer, values)
        self.since_best += score is not None
        if score is not None and score.value > self.best:
            self.best, self.since_best = score.value, 0
            self.on_best(encoder)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and how long ago it was."""
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both."""
        self.best, self.since_best = state_dict["best"], state_dict.get("since_best", 0)
