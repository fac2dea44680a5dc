"""Whole data sets through a frozen encoder, in order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from macl.modalities.base import Dataset, Embed, Views
from macl.progress import track


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
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=dataset.collate,
    )
    training = encoder.training
    encoder.eval()
    try:
        batches = loader if quiet else track(loader, "embedding", len(loader))
        parts = [encoder(views.plain(_moved(batch, device))).float().cpu() for batch in batches]
    finally:
        encoder.train(training)
    return torch.cat(parts)


def _moved(batch: Any, device: torch.device) -> Any:
    from lightning.fabric.utilities import move_data_to_device

    return move_data_to_device(batch, device)
