"""From a recipe to a trained run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from macl import modalities
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import remove_partial
from macl.core.launch import launched_processes, launched_rank
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.methods import Method
from macl.methods.build import build_method
from macl.modalities.base import Modality
from macl.modalities.embedding import embedder
from macl.modalities.protocols import Dataset, Views
from macl.probes.score import Score
from macl.recipes import Recipe
from macl.runs import Run
from macl.training.callbacks import MetricsFile, Monitor, SaveLast
from macl.training.faults import NonfiniteSteps, told_in_words
from macl.training.loader import DataMark, ResumableLoader
from macl.training.module import ContrastiveModule

log = logging.getLogger(__name__)

# The module makes itself double: Lightning's "64-true" would also change the default type of new
# tensors, and with it what the views draw.
PRECISION = {"64": "32-true", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


INITIAL_WEIGHTS = 7
"""Tells the random numbers of the weights from those of the data order with the same seed."""


WATCHING = ("evaluation", "monitor_every", "monitor_steps", "workers")
"""What a resumed run may change: how training is fed and watched, not what it does."""


@dataclass(frozen=True)
class Compute:
    """Where a run is computed; nothing here changes what is computed."""

    devices: int = 0
    """Processes on each node; 0: as many as torchrun or srun started, one where neither did."""
    nodes: int = 0
    """Machines; 0: likewise."""
    accelerator: str = "auto"
    progress: bool = True

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.devices * self.nodes

    def settled(self) -> Compute:
        """With numbers in place of zeros.

        Raises:
            UserError: they are not those of the launcher, so every process would train by itself.
        """
        asked = replace(self, devices=self.devices or 1, nodes=self.nodes or 1)
        launched = launched_processes()
        if launched is None:
            return asked
        started = replace(self, devices=launched[0], nodes=launched[1])
        if not (self.devices or self.nodes):
            return started
        if asked.world != started.world:
            raise UserError(
                f"torchrun or srun started {started.world} processes, and --devices and --nodes "
                f"ask for {asked.world}. Leave both out, or say --devices {started.devices} "
                f"--nodes {started.nodes}."
            )
        return asked


HERE = Compute()
"""One process on this machine, on its GPU if it has one."""


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    compute: Compute = HERE,
    callbacks: Sequence[pl.Callback] = (),
    loggers: Sequence[Any] = (),
    dataset: Dataset | None = None,
    encoder: nn.Module | None = None,
) -> Run:
    """Train `recipe` into `folder` and return the finished run.

    With `resume` a run that was stopped goes on from its last checkpoint and ends as if it had
    never been stopped; one that is finished is returned as it is.

    Raises:
        Interrupted: told to stop; the checkpoint is written.
        UserError: the recipe, the data or the folder is not right.
    """
    compute = compute.settled()
    run = _claim(recipe, folder, resume)
    if resume and run.is_finished:
        return run
    modality = modalities.get(recipe.modality)
    if dataset is None:
        with told_in_words(folder):
            dataset = modality.load(recipe.data, "train")
    torch.manual_seed(mix(recipe.seed, INITIAL_WEIGHTS))
    if encoder is None:
        encoder = modality.build_encoder(recipe.encoder, dataset)
    views = modality.build_views(recipe.views, encoder)
    method = build_method(recipe.method, recipe.loss, encoder)
    _check_negatives(dataset, method, recipe)
    batches = ShardedBatches(
        len(dataset),
        recipe.batch_size,
        recipe.seed,
        launched_rank(compute.devices),
        compute.world,
        recipe.drop_last,
    )
    module = ContrastiveModule(
        method,
        views,
        recipe.optimizer,
        recipe.schedule,
        batch_size=recipe.batch_size * recipe.accumulate_grad_batches,
        steps_per_epoch=len(batches),
        accumulate=recipe.accumulate_grad_batches,
        chunk_size=recipe.chunk_size,
        epochs=recipe.epochs,
        seed=recipe.seed,
        double_precision=recipe.precision == "64",
        data=DataMark.of(dataset),
    )
    own = _callbacks(recipe, run, compute, modality, dataset, views)
    if launched_rank() == 0:
        run = Run.create(folder, recipe)
    trainer = _trainer(recipe, run, compute, [*own[:-1], *callbacks, own[-1]])
    loader = ResumableLoader(dataset, batches, recipe.workers, views)
    # Encoders read from a folder come in eval mode, and Lightning leaves modes as it finds them:
    # without dropout the two views of a sentence would be the same.
    module.train()
    resumed = run.last_checkpoint if resume and run.last_checkpoint.is_file() else None
    with warnings.catch_warnings(), told_in_words(folder):
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, loader, ckpt_path=resumed)
        if trainer.is_global_zero:
            modality.save_encoder(encoder, run.folder, _metadata(recipe))
    trainer.strategy.barrier("encoder written")
    return run


def _claim(recipe: Recipe, folder: Path, resume: bool) -> Run:
    """The run folder, checked: nothing of an earlier run is ever overwritten."""
    run = Run(folder)
    if launched_rank() != 0:
        return run
    for place in (folder, run.last_checkpoint.parent, folder / "best"):
        remove_partial(place)
    if resume and run.recipe_file.is_file():
        difference = _difference(run.recipe, recipe)
        if difference:
            raise UserError(
                f"{folder} was started with another recipe ({difference}). Resume it as it was "
                f"with `macl train {folder} --resume`, or choose another --out."
            )
        return run
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give --out a folder that is empty or not there yet.")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder} is not empty. Use --resume to continue the run in it, or another --out."
        )
    return run


def _check_negatives(dataset: Dataset, method: Method, recipe: Recipe) -> None:
    """`UserError` when the data brings hard negatives that nobody has a place for."""
    if not dataset.has_negatives:
        return
    if not method.takes_negatives:
        raise UserError(
            f"method {recipe.method.name} has no place for hard negatives: use method=simclr, or "
            "leave data.negative out."
        )
    if method.loss.negatives != "cross":
        raise UserError(
            "hard negatives belong to the anchors of the first view: set loss.negatives=cross, or "
            "leave data.negative out."
        )


def _difference(one: Recipe, two: Recipe) -> str:
    """What would make two recipes train differently, in words; empty where nothing would."""
    a, b = (_flat(each.model_dump(mode="json", exclude=set(WATCHING))) for each in (one, two))
    keys = [key for key in sorted(a | b) if a.get(key) != b.get(key)]
    return ", ".join(f"{key}: {a.get(key)} there, {b.get(key)} now" for key in keys[:5])


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix: values}
    joint = "." if prefix else ""
    return {
        k: v for key, value in values.items() for k, v in _flat(value, prefix + joint + key).items()
    }


def _trainer(
    recipe: Recipe, run: Run, compute: Compute, callbacks: list[pl.Callback]
) -> pl.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    many = compute.world > 1
    # Buffers stay where they are: the queue is the same on every rank by construction, and sending
    # it along with every step would cost more than the gradients. Not every method uses every head.
    strategy: Any = DDPStrategy(broadcast_buffers=False) if many else "auto"
    gpu = compute.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return pl.Trainer(
        accelerator=compute.accelerator if gpu or compute.accelerator != "auto" else "cpu",
        devices=compute.devices,
        num_nodes=compute.nodes,
        strategy=strategy,
        sync_batchnorm=many and gpu,
        precision=PRECISION[recipe.precision],  # type: ignore[arg-type]
        max_epochs=recipe.epochs,
        accumulate_grad_batches=recipe.accumulate_grad_batches,
        gradient_clip_val=recipe.gradient_clip,
        callbacks=callbacks,
        plugins=[SafeCheckpointIO()],
        logger=TensorBoardLogger(run.folder, name="", version=""),
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=compute.progress,
        use_distributed_sampler=False,
        default_root_dir=run.folder,
    )


def _callbacks(
    recipe: Recipe,
    run: Run,
    compute: Compute,
    modality: Modality[Any, Any, Any, Any],
    dataset: Dataset,
    views: Views,
) -> list[pl.Callback]:
    metrics = MetricsFile(run.metrics_file)
    watch = NonfiniteSteps(run.folder, dataset.names, recipe.on_nonfinite)
    callbacks: list[pl.Callback] = [watch, metrics]
    judge = modality.monitor(recipe.evaluation, dataset) if recipe.monitor_every else None
    if judge is None and recipe.monitor_every and launched_rank() == 0:
        log.warning(
            "nothing is monitored, so no best encoder is kept: that needs %s.",
            modality.monitor_needs,
        )
    if judge is not None:

        def look(encoder: nn.Module) -> Score | None:
            return judge(embedder(encoder, views, quiet=True))

        def keep(encoder: nn.Module) -> None:
            modality.save_encoder(encoder, run.folder / "best", _metadata(recipe))

        callbacks.append(Monitor(look, recipe.monitor_every, metrics, keep, recipe.monitor_steps))
    if compute.progress:
        callbacks.append(RichProgressBar(leave=False))
    # Last, so that the checkpoint holds what the others remember of this step.
    return [*callbacks, SaveLast(run.last_checkpoint, recipe.save_every)]


def _metadata(recipe: Recipe) -> dict[str, str]:
    return {"recipe": recipe.name, "modality": recipe.modality, "loss": recipe.loss.name}
