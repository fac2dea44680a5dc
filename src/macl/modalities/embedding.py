"""Whole data sets through a frozen encoder, in order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from macl.core import batching, worker_errors
from macl.core.progress import track
from macl.modalities.protocols import Dataset, Embed, Views


def embedder(
    encoder: nn.Module,
    views: Views,
    *,
    batch_size: int = 256,
    workers: int = 0,
    quiet: bool = False,
) -> Embed:
    """A function that encodes a data set: dataset → (N, D) float32 on the CPU."""
    return partial(embed, encoder, views, batch_size=batch_size, workers=workers, quiet=quiet)


@torch.inference_mode()
def embed(
    encoder: nn.Module,
    views: Views,
    dataset: Dataset,
    *,
    batch_size: int = 256,
    workers: int = 0,
    quiet: bool = False,
) -> Tensor:
    """Encode every item, unaugmented, with the encoder in eval mode; its mode is put back after.

    Returns:
        (N, D) float32, row i for item i.
    """
    weight = next(encoder.parameters(), torch.empty(0))
    device, dtype = weight.device, weight.dtype
    order = dataset.embedding_order()
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        sampler=order,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=dataset.collate,
        timeout=worker_errors.READ_TIMEOUT if workers else 0,
    )
    training = encoder.training
    encoder.eval()
    try:
        batches = loader if quiet else track(loader, "embedding", len(loader))
        with worker_errors.translate_worker_errors():
            plain = (_plain(views, batch, device, dtype) for batch in batches)
            parts = [encoder(view).float().cpu() for view in plain]
    finally:
        encoder.train(training)
    vectors = torch.cat(parts)
    return vectors if order is None else vectors[torch.tensor(order).argsort()]


def _plain(views: Views, batch: Any, device: torch.device, dtype: torch.dtype) -> Any:
    view = views.plain(batching.move(batch, device))
    # Views are made in single precision; an encoder trained with precision=64 wants them double.
    return batching.double(view) if dtype == torch.float64 else view
