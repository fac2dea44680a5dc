"""What training steps leave for the callbacks, which know it and not each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import lightning.pytorch as pl
from torch import Tensor

LOG_EVERY = 10
"""Steps between two rows of metrics: often enough to see, too rarely to slow small models."""


class Observed(NamedTuple):
    """What the check of finite numbers needs to know of one batch, on its device."""

    indices: Tensor
    """(N,) positions in the data set."""
    bad: Tensor
    """(N,) bool: which samples have a NaN or an infinity in an embedding."""
    loss: Tensor
    """Scalar."""


class Journal:
    """Written by the module and by the check of its numbers, read by what writes and saves.

    An epoch has this number of `batches`, a step of the optimizer `accumulate` of them.
    """

    def __init__(self, batches: int, accumulate: int = 1) -> None:
        self.batches, self.accumulate = batches, accumulate
        self.batch = 0
        """The batch under way, of this epoch."""
        self.in_last_step = False
        """Whether the step under way is the last of the training."""
        self.observed: list[Observed] = []
        """Batches of the optimizer step under way."""
        self.row: dict[str, Tensor] = {}
        """Loss and metrics of the last logged step, on the device."""
        self.values: dict[str, float] = {}
        """The same on the host, once they are checked."""

    @property
    def ends_epoch(self) -> bool:
        """Whether the batch under way is the epoch's last."""
        return self.batch + 1 == self.batches

    @property
    def is_logged(self) -> bool:
        """Whether a row is written after this batch: every few steps, an epoch's last, the last."""
        every = self.accumulate * (1 if self.in_last_step else LOG_EVERY)
        return (self.batch + 1) % every == 0 or self.ends_epoch


class StepCallback(pl.Callback):
    """A callback that acts when the optimizer has moved, not while gradients are accumulated."""

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Call `after_step` where the batch completes a step."""
        last = batch_idx + 1 == trainer.num_training_batches
        if last or (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.after_step(trainer, pl_module)

    def after_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Act after the step that this batch completes."""
        raise NotImplementedError
