"""One Lightning module for every modality, method and loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from macl import distributed
from macl.core import batching
from macl.core.errors import UserError
from macl.core.seeding import reseed
from macl.losses import TrainingContext
from macl.methods import Method
from macl.modalities.protocols import Views
from macl.optim.optimizers import build_optimizer
from macl.optim.schedules import build_schedule, current_rates, warmup_steps
from macl.recipes.optim import OptimizerConfig, ScheduleConfig
from macl.training.caching import encode_in_chunks
from macl.training.flags import FlagShares
from macl.training.loader import Batch, DataMark
from macl.training.nonfinite import Observed, checks_every_step, nonfinite_rows

LOG_EVERY = 10
"""Steps between two rows of metrics: often enough to see, too rarely to slow small models."""


class ContrastiveModule(pl.LightningModule):
    """Batch → views → method → loss and metrics.

    Everything random in a step (views, dropout, shuffles) is drawn after seeding with (seed, step,
    rank). A step therefore depends on nothing that happened before it but the weights, and a
    resumed run equals an uninterrupted one without any generator state in the checkpoint.

    Off the CPU a step reads nothing back from the device: metrics and the check for NaN stay there
    until a row is logged, or a checkpoint is written.
    """

    def __init__(
        self,
        method: Method,
        views: Views,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        context: TrainingContext,
        *,
        batches_per_epoch: int,
        seed: int,
        accumulate: int = 1,
        chunk_size: int | None = None,
        double_precision: bool = False,
        data: DataMark | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.method, self.views, self.context = method, views, context
        self.optimizer_config, self.schedule_config = optimizer, schedule
        self.batches_per_epoch, self.seed = batches_per_epoch, seed
        self.accumulate, self.chunk_size = accumulate, chunk_size
        self.double_precision, self.data, self.recipe = double_precision, data, recipe
        self.observed: list[Observed] = []
        """What was seen of the batches of the optimiser step under way."""
        self.row: dict[str, Tensor] = {}
        """Loss and metrics of the last logged step, on the device."""
        self.flags = FlagShares()
        # Raised here rather than after set-up.
        warmup_steps(schedule, context.steps, context.steps_per_epoch)
        try:
            method.setup(context)
        except ValueError as error:
            raise UserError(str(error)) from error
        if double_precision:
            self.method.double()

    def on_train_start(self) -> None:
        """Set the rates for the step where training begins: a run may have been made longer."""
        scheduler: Any = self.lr_schedulers()
        groups = scheduler.optimizer.param_groups
        for group, rate in zip(groups, current_rates(scheduler), strict=True):
            group["lr"] = rate

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed this step; with accumulation each part of a step draws its own numbers."""
        position = self.trainer.current_epoch * self.batches_per_epoch + batch_idx
        reseed(self.device, self.seed, position, self.global_rank)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """As Lightning does; on a CPU nothing has to be moved, nor the batch walked through."""
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
        embeddings = encode_in_chunks(self.method, views, self.chunk_size)
        bad = nonfinite_rows(embeddings)
        # The step goes on to its end with zeros, so that no process waits for one that stopped.
        if not checks_every_step(bad.device) or bool(bad.any()):
            embeddings = tuple(z.nan_to_num(0.0, 0.0, 0.0) for z in embeddings)
        try:
            step = self.method.step(*embeddings, groups=batch.groups, indices=batch.indices)
        except ValueError as error:
            raise UserError(f"training stopped at step {self.global_step}: {error}") from error
        self.observed.append(Observed(batch.indices, bad, step.loss.detach()))
        self.flags.add(step.metrics)
        if self.is_logged(batch_idx):
            self._log(step.loss.detach(), step.metrics)
        return step.loss

    def is_logged(self, batch_idx: int) -> bool:
        """Whether a row is written after this batch: every few steps, and the epoch's last."""
        done = batch_idx + 1
        return done % (LOG_EVERY * self.accumulate) == 0 or done == self.batches_per_epoch

    def _log(self, loss: Tensor, metrics: Mapping[str, Tensor | float]) -> None:
        values = {"loss": loss, **metrics, **self.flags.take()}
        wide = torch.promote_types(loss.dtype, torch.float32)
        stacked = torch.stack(
            [torch.as_tensor(v, dtype=wide, device=loss.device).detach() for v in values.values()]
        )
        stacked = distributed.global_sum(stacked) / distributed.world_size()
        self.row = dict(zip(values, stacked.unbind(), strict=True))
        # For callbacks that read `trainer.callback_metrics`; loggers get the row from the file's
        # callback, in one transfer.
        self.log_dict(self.row, logger=False, batch_size=1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Method and loss learn the step here, before any checkpoint is written."""
        step = self.trainer.global_step
        super().optimizer_step(*args, **kwargs)
        self.method.advance(step + 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The flags since the last row, the recipe, and what identifies the data."""
        checkpoint["row"] = self.flags.state_dict()
        if self.data is not None:
            checkpoint["data"] = self.data._asdict()
        if self.recipe is not None:
            checkpoint["recipe"] = self.recipe

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore them; older checkpoints have none."""
        self.flags.load_state_dict(checkpoint.get("row", {}))
        if self.data is not None and "data" in checkpoint:
            self.data.require_same(DataMark(**checkpoint["data"]))

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser and its schedule, stepped every optimiser step."""
        optimizer = build_optimizer(self.optimizer_config, self.method, self.context.batch_size)
        schedule = build_schedule(
            self.schedule_config, optimizer, self.context.steps, self.context.steps_per_epoch
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "lr"},
        }
