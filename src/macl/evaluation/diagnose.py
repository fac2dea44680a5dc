"""The diagnosis of a run: a sample of its training data, seen as the loss saw it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from macl import recipes
from macl.core import batching
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.progress import track
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.diagnosis import Diagnosis, tell
from macl.diagnosis.measure import History, Measured
from macl.diagnosis.space import describe, false_negatives
from macl.diagnosis.weighing import Weighed, weigh
from macl.methods import NNCLR, Method, MoCo, SimCLR
from macl.methods.build import build_loss, build_method
from macl.methods.simclr import split_groups
from macl.modalities.monitor import Subset
from macl.modalities.protocols import Dataset, Embed
from macl.runs import Run
from macl.training.loader import Batch, ResumableLoader

GONE = (
    "checkpoints/last.ckpt is gone, and with it the projector: the encoder's output stands in for "
    "what the loss saw, and gradient reduction is judged by metrics.csv alone."
)


def diagnose_run(
    run: Run, overrides: recipes.Overrides | None = None, items: int = 1024
) -> Diagnosis:
    """Encode about `items` training items, in whole batches and at least one, and judge them.

    Args:
        run: a finished run.
        overrides: of the data section, for data that moved since.
        items: more of them give steadier figures.
    """
    recipe = recipes.override(run.recipe, overrides or {})
    embed = run.embed  # tells at once when the run is not finished
    dataset = run.modality.load(recipe.data, "train")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, recipe.epochs))
        method, is_whole = _method(run)
        measured = _measure(run, method, dataset, embed, items)
    measured = replace(measured, is_what_the_loss_saw=is_whole)
    return tell(measured, method.loss, () if is_whole else (GONE,))


def _measure(run: Run, method: Method, dataset: Dataset, embed: Embed, items: int) -> Measured:
    recipe = run.recipe
    batches = ShardedBatches(len(dataset), recipe.batch_size, recipe.seed, rank=0, world=1)
    batches.set_epoch(recipe.epochs)  # the order that training would have gone on with
    count = min(len(batches), max(1, items // recipe.batch_size))
    loader = ResumableLoader(dataset, batches, recipe.workers, run.views)
    weighed: list[Weighed] = []
    views1, views2, indices = [], [], []
    for batch in track(islice(loader, count), "encoding two views", count):
        embeddings = _encode(method, run, batch)
        weighed += _weigh(method, embeddings, batch)
        views1.append(embeddings[0])
        views2.append(embeddings[1])
        indices.append(batch.indices)
    z1, z2, chosen = torch.cat(views1), torch.cat(views2), torch.cat(indices)
    labels = None if dataset.labels is None else dataset.labels[chosen]
    joined = Weighed.join(weighed)
    temperature = joined.temperature.mean().item()
    return Measured(
        weighed=joined,
        space=describe(z1, labels),
        features=describe(embed(Subset(dataset, chosen))),
        confused=None if labels is None else false_negatives(z1, z2, labels, temperature),
        history=History.read(run.metrics()),
        names=dataset.names,
        has_bank=isinstance(method, MoCo),
    )


def write_diagnosis(run: Run, told: Diagnosis) -> Path:
    """diagnosis.json in the run's folder."""
    path = run.folder / "diagnosis.json"
    text = json.dumps(told.as_dict(), indent=2, ensure_ascii=False)
    atomic_write(path, lambda file: file.write(text.encode()))
    return path


def _method(run: Run) -> tuple[Method, bool]:
    """The method as training left it; with the encoder alone, and False, if that is all there is.

    In training mode: dropout is a text's only augmentation, and batch statistics are what the loss
    saw. On a copy, as that moves the running statistics.
    """
    encoder = copy.deepcopy(run.encoder)
    recipe = run.recipe
    if not run.last_checkpoint.is_file():
        method: Method = SimCLR(encoder, nn.Identity(), build_loss(recipe.loss, SimCLR.form))
        return method.train(), False
    method = build_method(recipe.method, recipe.loss, encoder)
    if recipe.precision == "64":
        method.double()
    stored = SafeCheckpointIO().load_checkpoint(run.last_checkpoint)["state_dict"]
    prefix = "method."
    state = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{run.last_checkpoint} does not fit the recipe beside it: it is of another run. "
            "Remove it to diagnose the encoder alone."
        ) from error
    return method.train(), True


@torch.no_grad()
def _encode(method: Method, run: Run, batch: Batch) -> tuple[Tensor, ...]:
    views = run.views(batch.inputs)
    if run.recipe.precision == "64":
        views = tuple(map(batching.double, views))
    return method.encode(*views)


def _weigh(method: Method, embeddings: tuple[Tensor, ...], batch: Batch) -> list[Weighed]:
    """What the method's `contrast` contrasts, weighed."""
    loss, items = method.loss, batch.indices
    if isinstance(method, MoCo):
        query, key = embeddings
        return [weigh(loss, query, key, items, bank=method.queue.rows)]
    if isinstance(method, NNCLR):
        z1, z2, p1, p2 = embeddings
        near1, near2 = method.queue.nearest(z1), method.queue.nearest(z2)
        return [
            weigh(loss, near, predicted.to(near.dtype), items, groups=batch.groups)
            for near, predicted in ((near1, p2), (near2, p1))
        ]
    z1, z2, *hard = embeddings
    if not hard:
        return [weigh(loss, z1, z2, items, groups=batch.groups)]
    own, theirs = split_groups(batch.groups, len(z1))
    return [weigh(loss, z1, z2, items, groups=own, hard=hard[0], hard_groups=theirs)]
