"""The diagnosis of a run: a sample of its training data, as the loss saw it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice

import torch

from macl.core import batching
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.progress import track
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.diagnosis import Diagnosis, conclude
from macl.diagnosis.measure import Contrast, GradientProfile, History, gradient_profile
from macl.diagnosis.space import Space, describe
from macl.methods import ContrastiveMethod, Method
from macl.methods.base import build_method
from macl.modalities.protocols import Dataset
from macl.modalities.splits import Subset
from macl.recipes import Overrides
from macl.runs import Run
from macl.training.fit import training_context
from macl.training.loader import Batch, ResumableLoader


def diagnose_run(run: Run, overrides: Overrides | None = None, items: int = 1024) -> Diagnosis:
    """Encode about `items` training items, in whole batches and at least one, and diagnose them.

    Where the method contrasts nothing, only the geometry of its embeddings is reported.
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
        method = _method(run, dataset, len(batches))
        count = min(len(batches), max(1, items // recipe.batch_size))
        loader = ResumableLoader(dataset, batches, recipe.workers, run.views)
        seen = track(islice(loader, count), "encoding two views", count)
        moved = (batching.move(batch, device) for batch in seen)
        space, features, contrast = _measure(run, dataset, method, moved)
    nothing = (
        "the method contrasts nothing: only collapse and uniformity of its embeddings are reported."
    )
    return conclude(space, features, contrast, () if contrast else (nothing,))


@torch.no_grad()
def _measure(
    run: Run, dataset: Dataset, method: Method, batches: Iterable[Batch]
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
        about = method.about_samples(batch.indices)
        for inputs in method.contrasted(embeddings[-1], batch.groups):
            profiles.append(gradient_profile(method.loss, inputs._replace(**about)))
            has_bank |= inputs.bank is not None
    seen = torch.cat(indices).cpu()
    sides = [*map(torch.cat, zip(*embeddings, strict=True))][:2]
    labels = None if dataset.labels is None else dataset.labels[seen].to(sides[0].device)
    contrast = None
    if isinstance(method, ContrastiveMethod) and profiles:
        contrast = Contrast(
            method.loss,
            GradientProfile.join(profiles),
            (sides[0], sides[1]),
            labels,
            dataset.names,
            has_bank,
            History.read(run.metrics()),
            run.recipe.modality,
        )
    features = describe(run.embed(Subset(dataset, seen)))
    return describe(sides[0], labels), features, contrast


def _method(run: Run, dataset: Dataset, batches: int) -> Method:
    """The method as training left it.

    In training mode: dropout is a text's only augmentation, and the loss saw batch statistics. On a
    copy, as that changes the running statistics.
    """
    recipe = run.recipe
    if not run.last_checkpoint.is_file():
        raise UserError(
            f"{run.last_checkpoint} is not there, and with it the projector, whose output a "
            "diagnosis looks at: copy the checkpoint too, or give embeddings to macl.diagnose."
        )
    method = build_method(recipe.method, recipe.loss, copy.deepcopy(run.encoder))
    method.setup(training_context(recipe, dataset, batches))
    if recipe.precision == "64":
        method.double()
    stored = SafeCheckpointIO().load_checkpoint(run.last_checkpoint)["state_dict"]
    prefix = "method."
    state = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{run.last_checkpoint} does not fit the recipe beside it: it is of another run."
        ) from error
    return method.train().to(run.placement.device)
