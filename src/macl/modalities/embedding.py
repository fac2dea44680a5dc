"""Whole data sets through a frozen encoder, in order, and a quick score of that in training."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from macl import distributed
from macl.core import batching, worker_errors
from macl.core.batching import ahead
from macl.core.devices import Placement, room
from macl.core.errors import UserError
from macl.core.progress import track
from macl.criteria import cheap_criteria
from macl.modalities.protocols import Dataset, Embed, Monitor, Views
from macl.modalities.splits import Subset, random_subset
from macl.probes.common import require_labels
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score

LARGEST_ON_CPU, LARGEST_ON_GPU = 2**12, 2**17
"""Size of a batch, padded to its largest item: about 1,000 and 32,000 tokens of text. On a CPU 256
sentences at once take twice the time of as many in small batches."""


def embedder(
    encoder: nn.Module, views: Views, *, placement: Placement | None = None, **settings: Any
) -> Embed:
    """A function that encodes a data set: dataset → (N, D) float32; `settings` as of `embed`."""
    if placement is not None:
        # Within `embed`, in inference mode, parameters would become tensors that cannot be trained.
        encoder.to(placement.device)
    return partial(embed, encoder, views, placement=placement, **settings)


def leading(embed: Embed, dims: int | None) -> Embed:
    """`embed` with the first `dims` coordinates of every vector alone; None: all of them."""
    if dims is None:
        return embed

    def narrowed(dataset: Dataset, *, augmented: bool = False) -> Tensor:
        vectors = embed(dataset, augmented=augmented)
        if not 1 <= dims <= vectors.shape[1]:
            width = vectors.shape[1]
            raise UserError(f"dims={dims}: the encoder's vectors have {width} coordinates.")
        return vectors[:, :dims].contiguous()

    return narrowed


@torch.inference_mode()
def embed(
    encoder: nn.Module,
    views: Views,
    dataset: Dataset,
    *,
    batch_size: int = 256,
    workers: int = 0,
    quiet: bool = False,
    placement: Placement | None = None,
    stays: bool = False,
    augmented: bool = False,
) -> Tensor:
    """Encode every item with the encoder in eval mode: (N, D) float32, row i for item i.

    Items are not augmented, or lightly where `augmented` (`Views.light`). The precision is that of
    `placement`, by default of the encoder's weights. Rows are on the CPU, or where they fit on the
    device (`stays`).
    """
    view_of = views.light if augmented else views.plain
    weight = next(encoder.parameters(), torch.empty(0))
    device, dtype = weight.device, weight.dtype
    largest = LARGEST_ON_CPU if device.type == "cpu" else LARGEST_ON_GPU
    indices = _batches(dataset, batch_size, largest)
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=indices,
        num_workers=workers,
        collate_fn=dataset.collate,
        pin_memory=device.type == "cuda",
        timeout=worker_errors.READ_TIMEOUT if workers else 0,
    )
    training = encoder.training
    encoder.eval()
    # Double precision is asked for by its weights, and never halved.
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    if placement is not None and dtype == torch.float32:
        precision = placement.autocast
    # Rows stay on the device until they are many, so that no batch waits for a copy.
    here, on_host, space = list[Tensor](), list[Tensor](), room(device)
    try:
        batches = iter(loader)  # starts the workers, from the main thread

        def prepared() -> Generator[Any, None, None]:
            for batch in batches:
                with torch.inference_mode(), precision():  # a thread has modes of its own
                    view = view_of(batching.move(batch, device))
                # Views are made in single precision; an encoder of precision=64 wants double.
                yield batching.double(view) if dtype == torch.float64 else view

        # Reading and tokenizing go on while the encoder works; a GPU does not wait for them anyway.
        made = ahead(prepared()) if device.type == "cpu" else prepared()
        with worker_errors.translate_worker_errors(), closing(made) as inputs, precision():
            for view in inputs if quiet else track(inputs, "embedding", len(loader)):
                here.append(encoder(view).float())
                if len(here) * here[-1].nbytes > space:
                    on_host.append(torch.cat(here).cpu())
                    here = []
    finally:
        encoder.train(training)
    if on_host or not stays:
        here = [*on_host, *(rows.cpu() for rows in here)]
    vectors = torch.cat(here)
    order = torch.tensor([index for batch in indices for index in batch])
    as_they_come = torch.equal(order, torch.arange(len(order)))
    return vectors if as_they_come else vectors[order.argsort().to(vectors.device)]


def _batches(dataset: Dataset, most: int, largest: int) -> list[list[int]]:
    """Indices of all items, large ones first: at most `most` in a batch, of size `largest`."""
    sizes = [dataset.size(index) for index in range(len(dataset))]
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        # All are padded to the first item of the batch, which is the largest.
        if not batches or len(batches[-1]) >= min(most, largest // max(1, sizes[batches[-1][0]])):
            batches.append([])
        batches[-1].append(index)
    return batches


@torch.inference_mode()
def embed_together(
    embed: Embed, device: torch.device, dataset: Dataset, *, augmented: bool = False
) -> torch.Tensor:
    """`embed`, by each process a share; on `device` all rows are given to every process."""
    world = distributed.world_size()
    if world == 1 or len(dataset) < world:
        return embed(dataset, augmented=augmented)
    shares = torch.arange(len(dataset)).tensor_split(world)
    own = embed(Subset(dataset, shares[distributed.rank()]), augmented=augmented)
    return distributed.gather(own.to(device), [len(share) for share in shares]).to(own.device)


def monitored(
    evaluate: Monitor | None, dataset: Dataset, embed: Embed, *, most: int = 1000
) -> tuple[Score | None, dict[str, float]]:
    """The score of a monitor, if there is one, and figures that need no labels.

    The figures are of what the monitor embedded first, or of a sample of the data. They are for
    watching collapse: docs/results/criteria.md has what choosing by them costs.
    """
    seen: list[torch.Tensor] = []

    def remembered(items: Dataset, *, augmented: bool = False) -> torch.Tensor:
        seen.append(embed(items, augmented=augmented))
        return seen[-1]

    score = None if evaluate is None else evaluate(remembered)
    features = seen[0] if seen else embed(Subset(dataset, random_subset(len(dataset), most)))
    return score, cheap_criteria(features[:most])


def knn_monitor(dataset: Dataset, embed: Embed, *, most: int = 2000, k: int = 20) -> Score:
    """kNN accuracy within the training data, which has classes: four fifths vote on the rest.

    A fixed sample of at most `most` items, no test data: a trend to watch, not a result.
    """
    labels = require_labels(dataset.labels, "train")
    chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:most]
    features, classes = embed(Subset(dataset, chosen)), labels[chosen]
    cut = len(chosen) * 4 // 5
    accuracy = knn_accuracy(features[:cut], classes[:cut], features[cut:], classes[cut:], k=k)
    return Score("knn", "top1", accuracy["top1"], split="train", details={"k": k, "n": len(chosen)})
