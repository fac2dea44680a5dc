"""A plain LightningModule around a loss of macl that gives the numbers of `macl train digits`.

    pip install 'macl[train]'
    python examples/lightning_module.py

What makes the numbers equal is stated where it is done: initial weights, batches, and the random
numbers of each step. Leave those lines out and it is an ordinary module.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from macl import MACL, modalities
from macl.api import resolve
from macl.core.seeding import mix, reseed
from macl.core.sharding import ShardedBatches
from macl.methods.heads import build_head
from macl.optim import build_optimizer, build_schedule
from macl.recipes import Recipe
from macl.training.fit import INITIAL_WEIGHTS
from macl.training.loader import Batch, ResumableLoader


class Contrastive(pl.LightningModule):
    """Encoder, projector, loss."""

    def __init__(self, recipe: Recipe, dataset: Any, steps_per_epoch: int) -> None:
        super().__init__()
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        modality = modalities.get(recipe.modality)
        torch.manual_seed(mix(recipe.seed, INITIAL_WEIGHTS))  # the initial weights of `macl train`
        self.encoder = modality.build_encoder(recipe.encoder, dataset)
        self.views = modality.build_views(recipe.views, self.encoder)
        self.projector = build_head(recipe.method.projector, int(self.encoder.out_dim))  # type: ignore[arg-type]
        self.criterion = MACL(recipe.loss.temperature, recipe.loss.alpha, recipe.loss.threshold)
        self.losses: list[float] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Two views in one forward pass, and the loss."""
        position = self.current_epoch * self.steps_per_epoch + batch_idx
        reseed(self.device, self.recipe.seed, position, 0)  # the views of `macl train`
        first, second = self.views(batch.inputs)
        z1, z2 = self.projector(self.encoder(torch.cat([first, second]))).chunk(2)
        contrast = self.criterion.contrast(z1, z2)
        self.log_dict(contrast.metrics(), batch_size=len(z1))
        self.losses.append(contrast.loss.item())
        return contrast.loss

    def configure_optimizers(self) -> Any:
        """The recipe's optimizer and schedule."""
        optimizer = build_optimizer(self.recipe.optimizer, self, self.recipe.batch_size)
        steps = self.recipe.epochs * self.steps_per_epoch
        schedule = build_schedule(self.recipe.schedule, optimizer, steps, self.steps_per_epoch)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(epochs: int = 2, **overrides: Any) -> list[float]:
    """Train as the recipe `digits` says; returns the loss of every step."""
    recipe = resolve("digits", epochs=epochs, overrides=overrides)
    dataset = modalities.get(recipe.modality).load(recipe.data, "train")
    batches = ShardedBatches(len(dataset), recipe.batch_size, recipe.seed, rank=0, world=1)
    module = Contrastive(recipe, dataset, len(batches))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, ResumableLoader(dataset, batches, workers=0))
    return module.losses


if __name__ == "__main__":
    print(" ".join(f"{loss:.6f}" for loss in train()))
