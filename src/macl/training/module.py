"""One Lightning module for every modality, method and loss."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from macl.core import batching
from macl.core.errors import UserError
from macl.core.seeding import reseed
from macl.losses import Contrast, Cosine
from macl.methods import Method
from macl.modalities.protocols import Views
from macl.optim.optimizers import build_optimizer
from macl.optim.schedules import build_schedule, warmup_steps
from macl.recipes.optim import OptimizerConfig, ScheduleConfig
from macl.training.caching import encode_in_chunks
from macl.training.faults import Fault, nonfinite_rows
from macl.training.loader import Batch, DataMark

LOG_EVERY = 10
"""Steps between two rows of metrics: often enough to see, too rarely to slow small models."""


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
        chunk_size: int | None = None,
        double_precision: bool = False,
        data: DataMark | None = None,
    ) -> None:
        super().__init__()
        self.method, self.views = method, views
        self.optimizer_config, self.schedule_config = optimizer, schedule
        self.batch_size, self.seed = batch_size, seed
        self.steps_per_epoch, self.epochs = steps_per_epoch, epochs
        self.accumulate, self.chunk_size = accumulate, chunk_size
        self.double_precision, self.data = double_precision, data
        self.faults: list[Fault] = []
        """What was not finite in the step under way, for whoever decides what to do about it."""
        self.floored, self.steps = torch.zeros(()), 0
        """In how many steps the temperature's floor acted, and of how many, since the last row."""
        self.updates = -(-steps_per_epoch // accumulate)
        """Optimiser steps in an epoch."""
        warmup_steps(schedule, epochs * self.updates, self.updates)  # told now, not after set-up
        if double_precision:
            self.method.double()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed this step; with accumulation each part of a step draws its own numbers."""
        position = self.trainer.current_epoch * self.steps_per_epoch + batch_idx
        reseed(self.device, self.seed, position, self.global_rank)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Lightning's way, which walks through the whole batch; on a CPU there is no way to go."""
        if device.type == "cpu":
            return batch
        moved: Batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        views = self.views(batch.inputs)
        if self.double_precision:
            views = tuple(map(batching.double, views))
        self.method.prepare()
        embeddings = self._finite(encode_in_chunks(self.method, views, self.chunk_size), batch)
        try:
            told = self.method.contrast(*embeddings, groups=batch.groups)
        except ValueError as error:
            raise UserError(f"training stopped at step {self.global_step}: {error}") from error
        if not bool(told.loss.isfinite()):
            self.faults.append(Fault(f"the loss became {told.loss.item()}.", []))
        self.floored = self.floored.to(told.floored.device) + told.floored
        self.steps += 1
        if self.is_logged(batch_idx):
            self._log(told, len(batch.indices))
        return told.loss

    def is_logged(self, batch_idx: int) -> bool:
        """Whether figures are written after this batch: every few steps, and the epoch's last."""
        done = batch_idx + 1
        return done % (LOG_EVERY * self.accumulate) == 0 or done == self.steps_per_epoch

    def _log(self, told: Contrast, batch_size: int) -> None:
        figures = {
            "loss": told.loss.detach(),
            "info_nce": told.info_nce,
            "alignment": told.alignment,
            "temperature": told.temperature,
            "gradient_scale": told.gradient_scale.mean(),
            "floored": self.floored / self.steps,
        }
        self.floored, self.steps = torch.zeros_like(self.floored), 0
        self.log_dict(
            figures,
            prog_bar=True,
            batch_size=batch_size,
            sync_dist=self.trainer.world_size > 1,
        )

    def _finite(self, embeddings: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """The embeddings; where they are not finite, that is noted and they become 0.

        The step goes on to its end, so that no process waits for one that stopped half-way.
        """
        bad = nonfinite_rows(embeddings)
        if not bool(bad.any()):
            return embeddings
        reason = f"the embeddings of {int(bad.sum())} of {len(bad)} samples are not finite."
        self.faults.append(Fault(reason, batch.indices[bad].tolist()))
        return tuple(z.nan_to_num(0.0, 0.0, 0.0) for z in embeddings)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """A temperature that follows the step follows it here, before any checkpoint is written."""
        super().optimizer_step(*args, **kwargs)
        temperature = self.method.loss.temperature
        if isinstance(temperature, Cosine):
            temperature.advance()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What the row under way has counted, and by what the data is known again."""
        checkpoint["row"] = {"floored": self.floored.item(), "steps": self.steps}
        if self.data is not None:
            checkpoint["data"] = self.data._asdict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it back, before the weights; checkpoints of old have neither."""
        row = checkpoint.get("row", {"floored": 0.0, "steps": 0})
        self.floored, self.steps = torch.tensor(row["floored"]), row["steps"]
        if self.data is not None and "data" in checkpoint:
            self.data.require_same(DataMark(**checkpoint["data"]))

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser and its schedule, stepped every batch."""
        optimizer = build_optimizer(self.optimizer_config, self.method, self.batch_size)
        schedule = build_schedule(
            self.schedule_config, optimizer, self.epochs * self.updates, self.updates
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "lr"},
        }
