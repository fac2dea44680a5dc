"""Around the training steps: checkpoints, signals, and a quick evaluation every few epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from macl import distributed
from macl.core.signals import Interrupted, StopSignals
from macl.probes.score import Score
from macl.training.faults import checks_every_step
from macl.training.journal import Journal, StepCallback
from macl.training.metrics import MetricsFile


class SaveLast(StepCallback):
    """Writes last.ckpt every few steps and after every epoch, and when a signal asks to stop.

    SIGINT and SIGTERM take effect after the step under way; a second SIGINT interrupts at once. In
    a SLURM job SIGUSR1 does so too, and asks SLURM to start the job again. Several processes with
    GPUs compare signals when a row is logged. Accumulated gradients are in no checkpoint.
    """

    def __init__(
        self, journal: Journal, path: Path, every: int, minutes: float | None = None
    ) -> None:
        self.journal, self.path, self.every, self.minutes = journal, path, every, minutes
        self.saved_at, self.saved_step = time.monotonic(), -1
        self.signals = StopSignals()

    def on_train_start(self, *args: Any) -> None:
        """Install the signal handlers."""
        self.signals.listen()

    def after_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save when due; stop when asked."""
        if self.journal.ends_epoch:  # saved below, after the monitor has run
            return
        # All leave after the same step; off the CPU it would wait for the other processes' signals.
        alone = trainer.world_size == 1 or checks_every_step(module.device)
        due = trainer.global_step % self.every == 0 or trainer.should_stop
        stop = False
        if alone or self.journal.is_logged:
            stop = distributed.any_rank(self.signals.asked is not None)
            if self.minutes is not None:  # too old by any process' clock
                late = time.monotonic() - self.saved_at > 60 * self.minutes
                due = distributed.any_rank(late) or due
        if stop or due:
            self._save(trainer, stop)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; stop when asked."""
        # What ends within an epoch is saved by then: there a longer training goes on.
        if self.saved_step != trainer.global_step:
            self._save(trainer, distributed.any_rank(self.signals.asked is not None))

    def _save(self, trainer: pl.Trainer, stop: bool) -> None:
        trainer.save_checkpoint(self.path)
        self.saved_at, self.saved_step = time.monotonic(), trainer.global_step
        if stop:
            if trainer.is_global_zero:
                self.signals.requeue()
            raise Interrupted(self.signals.asked or "a signal to another process")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Restore the signal handlers, before Lightning restores its own."""
        self.signals.release()

    on_exception = on_train_end


class AveragedWeights(StepCallback):
    """Keeps a running mean of the encoder's weights, which are the encoder's when training ends.

    The statistics of batch normalization are averaged too; what counts is copied.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def after_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """mean ← decay · mean + (1 − decay) · weights."""
        for name, value in module.get_submodule("method.encoder").state_dict().items():
            mean = self.mean.setdefault(name, value.clone()).to(value.device)
            averaged = mean.lerp(value, 1 - self.decay) if value.is_floating_point() else value
            self.mean[name] = averaged.clone()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the means the encoder's weights; checkpoints have the weights themselves."""
        if self.mean:
            pl_module.get_submodule("method.encoder").load_state_dict(self.mean)

    def state_dict(self) -> dict[str, Any]:
        """The means."""
        return self.mean

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.mean = state_dict


@dataclass(eq=False)
class Monitor(StepCallback):
    """A quick evaluation of the encoder every few epochs or steps, written to metrics.csv.

    `look` gives a score, None where it finds nothing to evaluate on, and figures that need no
    labels; every process calls it, and before it `check`, which raises where training went wrong.
    `every` counts epochs, `steps` optimizer steps within them. A new best score is followed by
    `on_best`; `patience` evaluations without one stop the training.
    """

    look: Callable[[nn.Module], tuple[Score | None, dict[str, float]]]
    every: int
    metrics: MetricsFile
    on_best: Callable[[nn.Module], None]
    steps: int = 0
    check: Callable[[pl.Trainer], Any] = lambda trainer: None
    patience: int = 0
    best: float = float("-inf")
    since_best: int = 0

    def after_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Evaluate when a number of steps has passed; the end of an epoch has its own."""
        due = self.steps and not self.metrics.journal.ends_epoch
        if due and trainer.global_step % self.steps == 0:
            self._evaluate(trainer, module)

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
            values = figures if score is None else {**figures, "monitor": score.value}
            if values:
                self.metrics.write(trainer, values)
            self.since_best += score is not None
            if score is not None and score.value > self.best:
                self.best, self.since_best = score.value, 0
                self.on_best(encoder)
        if self.patience and distributed.any_rank(self.since_best >= self.patience):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and how long ago it was."""
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both."""
        self.best, self.since_best = state_dict["best"], state_dict.get("since_best", 0)
