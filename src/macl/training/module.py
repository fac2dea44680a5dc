"""One Lightning module for every modality, method and loss."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from macl.config import UserError
from macl.losses import Contrast, Cosine
from macl.methods import Method
from macl.modalities.base import Views
from macl.training.loader import Batch, mix
from macl.training.optimizers import OptimizerConfig, build_optimizer
from macl.training.schedules import ScheduleConfig, build_schedule


class ContrastiveModule(pl.LightningModule):
    """Batch → two views → method → loss, with the figures that tell the two dilemmas.

    Everything random in a step (views, dropout, shuffles) is drawn after seeding with (seed, step,
    rank). A step therefore depends on nothing that happened before it but the weights, and a
    resumed run equals an uninterrupted one without any generator state in the checkpoint.
    """

    def __init__(
        self,
        method: Method,
        views: Views,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        *,
        batch_size: int,
        steps_per_epoch: int,
        epochs: int,
        seed: int,
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        self.method, self.views = method, views
        self.optimizer_config, self.schedule_config = optimizer, schedule
        self.batch_size, self.seed = batch_size, seed
        self.steps_per_epoch, self.epochs = steps_per_epoch, epochs
        self.accumulate = accumulate

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed this step; with accumulation each part of a step draws its own numbers."""
        position = self.trainer.current_epoch * self.steps_per_epoch + batch_idx
        torch.manual_seed(mix(self.seed, position, self.global_rank))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        told: Contrast = self.method(*self.views(batch.inputs), groups=batch.groups)
        if not bool(told.loss.isfinite()):
            raise UserError(
                f"the loss became {float(told.loss)} at step {self.global_step} (epoch "
                f"{self.current_epoch}). Lower the learning rate, clip gradients with clip=1, or "
                "use precision=32; the last good checkpoint is kept."
            )
        scale = told.gradient_scale
        figures = {
            "loss": told.loss.detach(),
            "info_nce": told.info_nce,
            "alignment": told.alignment,
            "temperature": told.temperature,
            "gradient_scale": scale.mean(),
            "floored": told.floored.float(),
        }
        self.log_dict(figures, batch_size=len(batch.indices), sync_dist=self.trainer.world_size > 1)
        return told.loss

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """A temperature that follows the step follows it here."""
        temperature = self.method.loss.temperature
        if isinstance(temperature, Cosine):
            temperature.advance()

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser and its schedule, stepped every batch."""
        optimizer = build_optimizer(self.optimizer_config, self.method, self.batch_size)
        updates = -(-self.steps_per_epoch // self.accumulate)
        schedule = build_schedule(self.schedule_config, optimizer, self.epochs * updates, updates)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "lr"},
        }
