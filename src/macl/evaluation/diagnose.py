"""The diagnosis of a run: a sample of its training data, as the loss saw it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macl.core import batching
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import write_text
from macl.core.progress import track
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.diagnosis import Diagnosis, conclude
from macl.diagnosis.gradient_profile import gradient_profile
from macl.diagnosis.measure import Contrast, History
from macl.diagnosis.space import Space, describe
from macl.methods import ContrastiveMethod, Method, SimCLR
from macl.methods.base import out_dim
from macl.methods.build import build_loss, build_method
from macl.modalities.protocols import Dataset
from macl.modalities.splits import Subset
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

    Where the method contrasts nothing, only the geometry of its embeddings is reported. `overrides`
    are of keys below "data.", for data that was moved since.
    """
    data = run.data_config(overrides)
    run.encoder  # noqa: B018  raises at once where the run is not finished
    dataset = run.modality.load(data, "train")
    recipe = run.recipe
    batches = ShardedBatches(len(dataset), recipe.batch_size, recipe.seed, 0, 1, recipe.drop_last)
    batches.set_epoch(recipe.epochs)  # the order with which training would have continued
    device = run.placement.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(mix(recipe.seed, recipe.epochs))
        method, is_whole = _method(run, dataset, len(batches))
        count = min(len(batches), max(1, items // recipe.batch_size))
        loader = ResumableLoader(dataset, batches, recipe.workers, run.views)
        seen = track(islice(loader, count), "encoding two views", count)
        moved = (batching.move(batch, device) for batch in seen)
        space, features, contrast = _measure(run, dataset, method, moved, is_whole)
    notes = [] if is_whole else [NO_CHECKPOINT]
    if contrast is None:
        notes.append(NOTHING_CONTRASTED)
    return conclude(space, features, contrast, notes)


def write_diagnosis(run: Run, diagnosis: Diagnosis) -> Path:
    """Write diagnosis.json into the run's folder; returns its path."""
    path = run.folder / "diagnosis.json"
    write_text(path, json.dumps(diagnosis.as_dict(), indent=2, ensure_ascii=False))
    return path


@torch.no_grad()
def _measure(
    run: Run, dataset: Dataset, method: Method, batches: Iterable[Batch], is_whole: bool
) -> tuple[Space, Space, Contrast | None]:
    """Batches encoded and contrasted as in training; the arguments of `conclude`."""
    indices, embeddings, profiles, has_bank = [], [], [], False
    for batch in batches:
        views = run.views(batch.inputs)
        if run.recipe.precision == "64":
            views = tuple(map(batching.double, views))
        indices.append(batch.indices)
        embeddings.append(method.encode(*views))
        if not isinstance(method, ContrastiveMethod):
            continue
        labels = method.sample_labels(batch.indices)
        for c in method.contrasted(embeddings[-1], batch.groups):
            given = (c.anchors, c.positives, batch.indices)
            profiles.append(gradient_profile(method.loss, *given, **c.negatives(), labels=labels))
            has_bank |= c.bank is not None
    seen = torch.cat(indices).cpu()
    sides = [*map(torch.cat, zip(*embeddings, strict=True))][:2]
    labels = None if dataset.labels is None else dataset.labels[seen].to(sides[0].device)
    contrast = None
    if isinstance(method, ContrastiveMethod) and profiles:
        contrast = Contrast.of(
            method.loss,
            profiles,
            sides,
            labels,
            history=History.read(run.metrics()),
            names=dataset.names,
            has_bank=has_bank,
            projected=is_whole,
            modality=run.recipe.modality,
        )
    features = describe(run.embed(Subset(dataset, seen)))
    return describe(sides[0], labels), features, contrast


class _EncoderAlone(Method):
    """The encoder without the method that trained it."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        return tuple(map(self.project, views))


def _method(run: Run, dataset: Dataset, batches: int) -> tuple[Method, bool]:
    """The method as training left it; with the encoder alone, and False, if that is all there is.

    In training mode: dropout is a text's only augmentation, and the loss saw batch statistics. On a
    copy, as that changes the running statistics.
    """
    encoder, recipe = copy.deepcopy(run.encoder), run.recipe
    is_whole = run.last_checkpoint.is_file()
    if is_whole:
        method = build_method(recipe.method, recipe.loss, encoder)
    elif recipe.loss is None:
        method = _EncoderAlone(encoder, nn.Identity())
    else:
        loss = build_loss(recipe.loss, SimCLR.loss_options, out_dim(encoder))
        method = SimCLR(encoder, nn.Identity(), loss)
    method.setup(training_context(recipe, dataset, batches))
    if is_whole:
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
    return method.train().to(run.placement.device), is_whole
