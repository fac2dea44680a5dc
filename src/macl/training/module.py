"""One Lightning module for every modality, method and loss."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from macl import distributed
from macl.caching import encode_in_chunks
from macl.core import batching
from macl.core.errors import UserError
from macl.core.seeding import reseed
from macl.losses import TrainingContext
from macl.methods import Method
from macl.modalities.protocols import DataMark, Dataset, Views
from macl.optim import build_optimizer, build_schedule, warmup_steps
from macl.recipes import Recipe
from macl.training.faults import checks_every_step
from macl.training.journal import Journal
from macl.training.loader import Batch

LOG_EVERY = 10
"""Steps between two rows of metrics: often enough to see, too rarely to slow small models."""


class ContrastiveModule(pl.LightningModule):
    """Batch → views → method → loss and metrics.

    Everything random in a step (views, dropout, shuffles) is drawn after seeding with (seed, step,
    rank), so it depends on nothing before it but the weights, and a resumed run equals an
    uninterrupted one. Off the CPU a step reads nothing back from the device until a row is logged.
    """

    def __init__(
        self,
        method: Method,
        views: Views,
        recipe: Recipe,
        context: TrainingContext,
        dataset: Dataset,
    ) -> None:
        super().__init__()
        self.method, self.views, self.recipe = method, views, recipe
        self.context, self.journal = context, Journal()
        self.data = DataMark.of(dataset)
        self._unsharded: list[nn.Module] = []
        # Raised here rather than after set-up.
        warmup_steps(recipe.schedule, context.steps, context.steps_per_epoch)
        try:
            method.setup(context)
        except ValueError as error:
            raise UserError(str(error)) from error
        if recipe.precision == "64":
            self.method.double()

    def configure_model(self) -> None:
        """Shard the weights over the processes, where the strategy does."""
        if self.device_mesh is not None and not self._unsharded:
            self._unsharded.append(copy.deepcopy(self.method.encoder))  # in a list: not a submodule
            from macl.training.sharded import shard

            whole = shard(self.method, self.device_mesh["data_parallel"])
            if whole and self.trainer.gradient_clip_val:
                raise UserError(
                    "strategy fsdp2 cannot clip gradients where the loss has parameters: use ddp, "
                    "leave gradient_clip out, or fix the temperature."
                )

    def whole_encoder(self) -> nn.Module:
        """The encoder with all of its weights, on every process; all of them call it."""
        if not self._unsharded:
            return self.method.encoder
        (encoder,) = self._unsharded
        state: dict[str, Any] = self.method.encoder.state_dict()
        whole = {k: v.full_tensor() if hasattr(v, "to_local") else v for k, v in state.items()}
        encoder.load_state_dict(whole)
        return encoder.to(self.device)

    def on_train_start(self) -> None:
        """Set the rates for the step where training begins: a run may have been made longer."""
        scheduler: Any = self.lr_schedulers()
        groups = zip(scheduler.optimizer.param_groups, scheduler.lr_lambdas, strict=True)
        for group, factor in groups:
            group["lr"] = group["initial_lr"] * factor(scheduler.last_epoch)
        self._advance(self.trainer.global_step)  # a resumed run goes on from there

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed this step; with accumulation each part of a step draws its own numbers."""
        if getattr(self.recipe.encoder, "batch_norm", None) == "frozen":
            for norm in self.method.encoder.modules():
                if isinstance(norm, _BatchNorm):
                    norm.eval()  # an evaluation in between may have changed the mode
        done, batches = batch_idx + 1, int(self.trainer.num_training_batches)
        in_last_step = self.trainer.global_step + 1 == self.context.steps
        every = self.recipe.accumulate_grad_batches * (1 if in_last_step else LOG_EVERY)
        self.journal.ends_epoch = done == batches
        self.journal.is_logged = done % every == 0 or done == batches
        position = self.trainer.current_epoch * batches + batch_idx
        reseed(self.device, self.recipe.seed, position, self.global_rank)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """To the device, except for inputs whose views are made on the host."""
        if device.type == "cpu":
            return batch
        inputs = batch.inputs if self.views.on_host else batching.move(batch.inputs, device)
        indices, groups = batching.move((batch.indices, batch.groups), device)
        return Batch(inputs, indices, groups)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        views = self.views(batch.inputs)
        if self.views.on_host:
            views = batching.move(views, batch.indices.device)
        if self.recipe.precision == "64":
            views = tuple(map(batching.double, views))
        self.method.prepare()
        embeddings = encode_in_chunks(
            self.method.encode, views, self.recipe.chunk_size, self.method
        )
        bad = ~torch.stack([z.detach().isfinite().all(1) for z in embeddings]).all(0)
        # The step goes on to its end with zeros, so that no process waits for one that stopped.
        if not checks_every_step(bad.device) or bool(bad.any()):
            embeddings = tuple(z.nan_to_num(0.0, 0.0, 0.0) for z in embeddings)
        try:
            step = self.method.step(*embeddings, groups=batch.groups, indices=batch.indices)
        except ValueError as error:
            raise UserError(f"training stopped at step {self.global_step}: {error}") from error
        self.journal.observed.append((batch.indices, bad, step.loss.detach()))
        if self.journal.is_logged:
            self._log(step.loss.detach(), step.metrics)
        return step.loss

    def _log(self, loss: Tensor, metrics: Mapping[str, Tensor | float]) -> None:
        values = {"loss": loss, **metrics}
        wide = torch.promote_types(loss.dtype, torch.float32)
        stacked = torch.stack(
            [torch.as_tensor(v, dtype=wide, device=loss.device).detach() for v in values.values()]
        )
        stacked = distributed.global_sum(stacked) / distributed.world_size()
        self.journal.row = dict(zip(values, stacked.unbind(), strict=True))
        # For callbacks that read `trainer.callback_metrics`; loggers get the row with the file.
        self.log_dict(self.journal.row, logger=False, batch_size=1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Method and loss learn the step here, before any checkpoint is written."""
        step = self.trainer.global_step
        super().optimizer_step(*args, **kwargs)
        self._advance(step + 1)

    def _advance(self, step: int) -> None:
        self.method.advance(step)
        # Lightning's `max_steps` would count a resumed epoch twice.
        if self.context.most_steps is not None and step >= self.context.most_steps:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The recipe, and what identifies the data."""
        checkpoint["data"] = self.data._asdict()
        checkpoint["recipe"] = self.recipe.model_dump(mode="json")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Compare the data; older checkpoints have no mark of it."""
        if "data" in checkpoint:
            self.data.require_same(DataMark(**checkpoint["data"]))

    def configure_optimizers(self) -> Any:
        """The recipe's optimizer and its schedule, stepped every optimizer step."""
        length = self.context.steps, self.context.steps_per_epoch
        optimizer = build_optimizer(self.recipe.optimizer, self.method, self.context.batch_size)
        schedule = build_schedule(self.recipe.schedule, optimizer, *length)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "name": "lr"}]
