"""From a recipe to a trained run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn

from macl import distributed, modalities
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import SkippedInputWarning, UserError
from macl.core.launch import began, launched_rank
from macl.core.locks import lock_folder
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.losses import TrainingContext
from macl.methods import Method, MoCo
from macl.methods.base import build_method
from macl.modalities.base import Modality
from macl.modalities.embedding import embed_together, embedder, monitored
from macl.modalities.protocols import Dataset
from macl.modalities.tuning import merged, save_adapter, tune
from macl.probes.score import Score
from macl.recipes import Recipe
from macl.runs import Run
from macl.runs.elsewhere import Elsewhere
from macl.training.callbacks import AveragedWeights, Monitor, SaveLast
from macl.training.compute import HERE, Compute, build_trainer, checkpoint_activations, kept_memory
from macl.training.faults import NonfiniteSteps, translate_training_errors
from macl.training.loader import ResumableLoader
from macl.training.metrics import MetricsFile, ProgressBar, build_loggers
from macl.training.module import ContrastiveModule
from macl.training.resume import claim, is_complete, mark_launch, remove_outcome
from macl.training.stream import EPOCH, Stream, StreamBatches, shard_stream

__all__ = ["HERE", "Compute", "train", "training_context"]

log = logging.getLogger(__name__)

INITIAL_WEIGHTS = 7
"""Separates the random numbers of the weights from those of the data order with the same seed."""


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    compute: Compute = HERE,
    callbacks: Sequence[pl.Callback] = (),
    loggers: Sequence[Logger] = (),
    dataset: Dataset | None = None,
    encoder: nn.Module | None = None,
    transform: Callable[..., Any] | None = None,
) -> Run:
    """Train `recipe` into `folder` and return the finished run.

    With `resume` a run that was stopped continues from its last checkpoint and ends as if it had
    never been stopped; so does one that torchrun or SLURM restarts. One that is finished is
    returned as it is, unless `recipe` has more epochs or steps than it was trained for: then it is
    trained on to that length, with the schedule of the new length from the step where it is (see
    `build_schedule`). Such a run is not the one that as many epochs from the start give.

    `callbacks` and `loggers` are Lightning's, in addition to ours; `dataset`, an `encoder` with an
    attribute `out_dim`, and `transform` (see `Views.by`) take the place of the recipe's.

    Raises:
        Interrupted: a signal asked to stop; the checkpoint is written.
        UserError: recipe, data or folder are not right, or another process trains into the folder.
    """
    compute = compute.settled()
    if encoder is None:
        recipe = modalities.get(recipe.modality).settle(recipe)
    with lock_folder(folder):
        resume = resume or began(Run(folder).last_checkpoint.parent)
        run = claim(recipe, folder, resume)
        if not (resume and is_complete(run, recipe)):
            given = dataset, encoder, transform
            _train(recipe, run, resume, compute, callbacks, loggers, *given)
    return Run(folder)


def _train(
    recipe: Recipe,
    run: Run,
    resume: bool,
    compute: Compute,
    callbacks: Sequence[pl.Callback],
    loggers: Sequence[Logger],
    dataset: Dataset | None,
    encoder: nn.Module | None,
    transform: Callable[..., Any] | None,
) -> None:
    """`train` in a folder that is locked and checked."""
    modality, folder = modalities.get(recipe.modality), run.folder
    if dataset is None:
        with translate_training_errors(folder):
            if recipe.stream:
                dataset = shard_stream(modality, recipe.data)
            else:
                dataset = modality.load(recipe.data, "train")
    # What is looked at before training: of a stream its first part.
    seen = dataset.first if isinstance(dataset, Stream) else dataset
    torch.manual_seed(mix(recipe.seed, INITIAL_WEIGHTS))
    if encoder is None:
        encoder = modality.build_encoder(recipe.encoder, seen)
    elif not isinstance(getattr(encoder, "out_dim", None), int):
        raise UserError(
            f"the encoder {type(encoder).__name__} has no attribute out_dim: set it to the width "
            "of its output, an integer."
        )
    views = modality.build_views(recipe.views, encoder)
    views = views if transform is None else views.by(transform)
    tune(encoder, recipe.encoder)
    method = build_method(recipe.method, recipe.loss, encoder)
    _check_data(recipe, dataset, method)
    if recipe.activation_checkpointing:
        checkpoint_activations(encoder)
    guide = _guide_embeddings(recipe, method, dataset)
    if recipe.compile:
        encoder.compile()
    dealt = recipe.batch_size, recipe.seed, launched_rank(compute.devices), compute.world
    if isinstance(dataset, Stream):
        count = EPOCH * recipe.accumulate_grad_batches
        batches: ShardedBatches = StreamBatches(dataset, *dealt, count)
    else:
        batches = ShardedBatches(len(dataset), *dealt, recipe.drop_last)
    _note_dropped(recipe, len(dataset))
    context = replace(training_context(recipe, dataset, len(batches)), guide=guide)
    module = ContrastiveModule(method, views, recipe, context, dataset)
    name = dataset.name if isinstance(dataset, Stream) else dataset.names.__getitem__
    steps = NonfiniteSteps(module.journal, folder, name, recipe.on_nonfinite)
    ours = _callbacks(module, run, modality, seen, steps, compute.progress)
    named = build_loggers(recipe, folder)
    if launched_rank() == 0:
        if resume:
            remove_outcome(run)
        Run.create(folder, recipe)
        mark_launch(run)
    # Last, so that the checkpoint holds the state of the others after this step.
    save = SaveLast(module.journal, run.last_checkpoint, recipe.save_every, recipe.save_minutes)
    ours = [*ours, *callbacks, save]
    trainer = build_trainer(recipe, folder, compute, context.epochs, ours, [*named, *loggers])
    loader = ResumableLoader(dataset, batches, recipe.workers, views)
    # Encoders read from a folder come in eval mode, and Lightning leaves modes as it finds them:
    # without dropout the two views of a sentence would be the same.
    module.train()
    resumed = run.last_checkpoint if resume and run.last_checkpoint.is_file() else None
    if resumed is not None and isinstance(dataset, Stream):
        # Lightning restores a loader within an epoch only.
        loops = SafeCheckpointIO().load_file(resumed)["loops"]["fit_loop"]
        loader.load_state_dict(loops["state_dict"]["combined_loader"][0])
    on_cpu = trainer.strategy.root_device.type == "cpu"
    with ExitStack() as stack, warnings.catch_warnings(), translate_training_errors(folder):
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(recipe.matmul_precision)
        warnings.filterwarnings("ignore", module="lightning")
        with distributed.equal_batches(), kept_memory() if on_cpu else nullcontext():
            trainer.fit(module, loader, ckpt_path=resumed)
        trained = module.whole_encoder()
        if trainer.is_global_zero:
            lora = getattr(recipe.encoder, "lora", None)
            if lora is not None and lora.apart:
                save_adapter(trained, run.folder / "adapter", lora)
            modality.save_encoder(merged(trained), run.folder, _metadata(recipe))
    trainer.strategy.barrier("encoder written")


def training_context(recipe: Recipe, dataset: Dataset, batches_per_epoch: int) -> TrainingContext:
    """What methods and losses may know of the training, in optimizer steps."""
    steps_per_epoch = -(-batches_per_epoch // recipe.accumulate_grad_batches)
    by_steps = recipe.epochs and recipe.steps
    return TrainingContext(
        samples=len(dataset),
        batch_size=recipe.batch_size * recipe.accumulate_grad_batches,
        steps_per_epoch=steps_per_epoch,
        epochs=-(-by_steps // steps_per_epoch) if by_steps else recipe.epochs,
        labels=dataset.labels,
        most_steps=recipe.steps,
    )


def _note_dropped(recipe: Recipe, samples: int) -> None:
    """Warn where an epoch leaves out more than a tenth of the samples."""
    steps, dropped = divmod(samples, recipe.batch_size)
    if recipe.drop_last and dropped > samples // 10 and launched_rank() == 0:
        message = (
            f"{samples:,} samples at batch_size={recipe.batch_size} make {steps:,} "
            f"step{'s' * (steps != 1)} an epoch and leave out {dropped:,} samples. "
            f"batch_size={samples // (steps + 1)} or drop_last=false uses them."
        )
        warnings.warn(message, SkippedInputWarning, stacklevel=3)


def _check_data(recipe: Recipe, dataset: Dataset, method: Method) -> None:
    """`UserError` if method or loss cannot use the data: its hard negatives, its unknown length."""
    if dataset.has_negatives:
        try:
            method.check_hard_negatives()
        except ValueError as error:
            raise UserError(str(error)) from error
    if not isinstance(dataset, Stream):
        return
    if recipe.steps is None:
        raise UserError("a stream has no epochs: say how long to train, as with steps=1000.")
    loss = recipe.loss
    if loss is not None and (loss.guide or getattr(method.loss, "takes_indices", False)):
        raise UserError(
            f"loss={loss.name} or its guide keeps values for every sample, and a stream's number "
            "of samples is not known: use another loss, or leave stream=true out."
        )


def _guide_embeddings(recipe: Recipe, method: Method, dataset: Dataset) -> Tensor | None:
    """(samples, G) what the encoder `loss.guide` makes of the data; None where none is named."""
    name = None if recipe.loss is None else recipe.loss.guide
    if name is None:
        return None
    if isinstance(method, MoCo):
        raise UserError(
            "loss.guide compares samples of a batch, and MoCo's negatives come from its queue: use "
            "method=simclr, or leave loss.guide out."
        )
    is_run = Run(Path(name)).recipe_file.is_file()
    opened = Run.open(Path(name)) if is_run else Elsewhere.open(name, modality=recipe.modality)
    if opened.modality.name != recipe.modality:
        raise UserError(f"loss.guide={name} is an encoder of {opened.modality.name}.")
    return opened.embed(dataset).clone()  # an ordinary tensor, which autograd may save


def _callbacks(
    module: ContrastiveModule,
    run: Run,
    modality: Modality,
    dataset: Dataset,
    steps: NonfiniteSteps,
    progress: bool,
) -> list[pl.Callback]:
    recipe, journal = module.recipe, module.journal
    metrics = MetricsFile(run.metrics_file, journal, steps.check)
    callbacks: list[pl.Callback] = [steps, metrics]
    if recipe.ema is not None:
        callbacks.append(AveragedWeights(recipe.ema))
    if recipe.monitor_every:
        evaluate = modality.monitor(recipe.evaluation, dataset)
        if evaluate is None and launched_rank() == 0:
            log.warning(
                "training logs label-free figures only; to keep the best encoder, it needs %s.",
                modality.monitor_needs,
            )

        def look(encoder: nn.Module) -> tuple[Score | None, dict[str, float]]:
            device = next(encoder.parameters()).device
            together = partial(embed_together, embedder(encoder, module.views, quiet=True), device)
            return monitored(evaluate, dataset, together)

        def keep(encoder: nn.Module) -> None:
            modality.save_encoder(merged(encoder), run.folder / "best", _metadata(recipe))

        every, within = recipe.monitor_every, recipe.monitor_steps
        callbacks.append(Monitor(look, every, metrics, keep, within, steps.check, recipe.patience))
    return [*callbacks, ProgressBar(metrics)] if progress else callbacks


def _metadata(recipe: Recipe) -> dict[str, str]:
    loss = {} if recipe.loss is None else {"loss": recipe.loss.name}
    return {"recipe": recipe.name, "modality": recipe.modality, **loss}
