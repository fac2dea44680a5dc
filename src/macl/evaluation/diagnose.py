"""The diagnosis of a run: a sample of its training data, as the loss saw it."""

from __future__ import annotations

import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
from macl.diagnosis import Diagnosis, conclude
from macl.diagnosis.measure import History, Measured
from macl.diagnosis.space import describe, false_negatives
from macl.diagnosis.weighing import Weighed, weigh
from macl.losses import ContrastiveLoss
from macl.methods import ContrastiveMethod, Method, SimCLR
from macl.methods.base import out_dim
from macl.methods.build import build_loss, build_method
from macl.modalities.monitor import Subset
from macl.modalities.protocols import Dataset
from macl.recipes import Overrides
from macl.runs import Run
from macl.training.fit import training_context
from macl.training.loader import Batch, ResumableLoader

NO_CHECKPOINT = (
    "checkpoints/last.ckpt is not there, and with it the projector: the encoder's output is "
    "measured in place of the embeddings, and gradient reduction by metrics.csv alone."
)
NOTHING_CONTRASTED = (
    "the method contrasts nothing: only collapse and uniformity of its embeddings are reported."
)


def diagnose_run(run: Run, overrides: Overrides | None = None, items: int = 1024) -> Diagnosis:
    """Encode about `items` training items, in whole batches and at least one, and diagnose them.

    Where the method contrasts nothing, only the geometry of its embeddings is reported.

    Args:
        run: a finished run.
        overrides: values of keys below "data.", for data that was moved since.
        items: more of them give steadier figures.
    """
    for key in overrides or {}:
        if not key.startswith("data."):
            raise UserError(f"{key}: a diagnosis can only change how data is read, with data.KEY.")
    data = recipes.override(run.recipe, overrides or {}).data
    run.encoder  # noqa: B018  raises at once where the run is not finished
    dataset = run.modality.load(data, "train")
    recipe = run.recipe
    batches = ShardedBatches(len(dataset), recipe.batch_size, recipe.seed, 0, 1, recipe.drop_last)
    batches.set_epoch(recipe.epochs)  # the order with which training would have continued
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, recipe.epochs))
        method, is_whole = _method(run, dataset, len(batches))
        count = min(len(batches), max(1, items // recipe.batch_size))
        loader = ResumableLoader(dataset, batches, recipe.workers, run.views)
        seen = track(islice(loader, count), "encoding two views", count)
        sample = _Sample.join([_seen(method, run, batch) for batch in seen])
        measured = _measure(run, dataset, sample, method.loss, is_whole)
    notes = [] if is_whole else [NO_CHECKPOINT]
    if measured.weighed is None:
        notes.append(NOTHING_CONTRASTED)
    return conclude(measured, method.loss, notes)


def write_diagnosis(run: Run, diagnosis: Diagnosis) -> Path:
    """Write diagnosis.json into the run's folder; returns its path."""
    path = run.folder / "diagnosis.json"
    text = json.dumps(diagnosis.as_dict(), indent=2, ensure_ascii=False)
    atomic_write(path, lambda file: file.write(text.encode()))
    return path


class _Sample(NamedTuple):
    """What was measured on some batches."""

    indices: Tensor
    views: tuple[Tensor, ...]
    """The embeddings of each view."""
    weighed: Weighed | None
    has_bank: bool

    @classmethod
    def join(cls, parts: list[_Sample]) -> _Sample:
        weighed = [part.weighed for part in parts if part.weighed is not None]
        return cls(
            torch.cat([part.indices for part in parts]),
            tuple(map(torch.cat, zip(*(part.views for part in parts), strict=True))),
            Weighed.join(weighed) if weighed else None,
            any(part.has_bank for part in parts),
        )


@torch.no_grad()
def _seen(method: Method, run: Run, batch: Batch) -> _Sample:
    """One batch, encoded and weighed as in training."""
    views = run.views(batch.inputs)
    if run.recipe.precision == "64":
        views = tuple(map(batching.double, views))
    embeddings = method.encode(*views)
    contrasted, loss = method.contrasted(embeddings, batch.groups), method.loss
    labels = method.labels if isinstance(method, ContrastiveMethod) else None
    own = None if labels is None else labels[batch.indices]
    weighed = [
        weigh(loss, c.anchors, c.positives, batch.indices, **c.negatives(), labels=own)
        for c in contrasted
        if loss is not None
    ]
    return _Sample(
        batch.indices,
        embeddings[:2],
        Weighed.join(weighed) if weighed else None,
        any(c.bank is not None for c in contrasted),
    )


def _measure(
    run: Run, dataset: Dataset, sample: _Sample, loss: ContrastiveLoss | None, is_whole: bool
) -> Measured:
    labels = None if dataset.labels is None else dataset.labels[sample.indices]
    confused = None
    is_supervised = loss is not None and loss.takes_labels  # without false negatives
    if labels is not None and sample.weighed is not None and not is_supervised:
        temperature = sample.weighed.temperature.mean().item()
        confused = false_negatives(sample.views[0], sample.views[1], labels, temperature)
    return Measured(
        space=describe(sample.views[0], labels),
        weighed=sample.weighed,
        features=describe(run.embed(Subset(dataset, sample.indices))),
        confused=confused,
        history=History.read(run.metrics()),
        names=dataset.names,
        has_bank=sample.has_bank,
        is_what_the_loss_saw=is_whole,
    )


class _EncoderAlone(Method):
    """The encoder without the method that trained it."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        return tuple(map(self.project, views))


def _method(run: Run, dataset: Dataset, batches: int) -> tuple[Method, bool]:
    """The method as training left it; with the encoder alone, and False, if that is all there is.

    In training mode: dropout is a text's only augmentation, and the loss saw batch statistics. On a
    copy, as that changes the running statistics.
    """
    encoder = copy.deepcopy(run.encoder)
    recipe = run.recipe
    context = training_context(recipe, dataset, batches)
    if not run.last_checkpoint.is_file():
        if recipe.loss is None:
            method: Method = _EncoderAlone(encoder, nn.Identity())
        else:
            loss = build_loss(recipe.loss, SimCLR.form, out_dim(encoder))
            method = SimCLR(encoder, nn.Identity(), loss)
        method.setup(context)
        return method.train(), False
    method = build_method(recipe.method, recipe.loss, encoder)
    method.setup(context)
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
