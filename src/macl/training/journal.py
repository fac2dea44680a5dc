"""What training steps leave for the callbacks, which know it and not each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
from torch import Tensor


@dataclass
class Journal:
    """Written by the module, read by what checks, writes and saves."""

    ends_epoch: bool = False
    """Whether the batch under way is the epoch's last."""
    is_logged: bool = False
    """Whether a row is written after it: every few steps, an epoch's last, the last."""
    observed: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Of each batch of the optimizer step under way: (N,) positions in the data set; (N,) bool,
    which of its samples have an embedding that is not finite; the loss. All on its device."""
    row: dict[str, Tensor] = field(default_factory=dict)
    """Loss and metrics of the last logged step, on the device."""


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
