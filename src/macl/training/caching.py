"""Batches larger than memory: encode in chunks, loss on the whole, encode again for the gradient.

Gradient caching (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory
limited setup"): activations for the backward pass are in memory for one chunk at a time, while the
loss is computed on the embeddings of the whole batch. A step costs one more forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from macl.core import batching
from macl.methods import Method


def encode_in_chunks(
    method: Method, views: Sequence[Any], chunk_size: int | None
) -> tuple[Tensor, ...]:
    """`method.encode(*views)`, with activations in memory for `chunk_size` samples at a time.

    The gradient is that of encoding the chunks one after the other: each is encoded a second time
    in the backward pass, from the same random state. Batch normalisation sees one chunk at a time
    and updates its running statistics once per chunk; everything else is as without chunks.

    It is one backward pass for autograd, so a parameter's gradient is complete before
    DistributedDataParallel sends it: one exchange per step, as without chunks.

    Args:
        method: encodes samples independently of each other, but for batch normalisation.
        views: the views of the whole batch of N samples.
        chunk_size: most samples in a chunk (one more where a chunk of one would be left); None, N
            or more: no chunks.

    Returns:
        The embeddings of the whole batch, (N, D) each.
    """
    n = batching.size(views[0])
    if chunk_size is None or n <= chunk_size:
        return method.encode(*views)

    def encode(rows: Tensor) -> tuple[Tensor, ...]:
        return method.encode(*(batching.take(view, rows) for view in views))

    # On the device of the weights: its generator is one of those that `checkpoint` restores.
    rows = torch.arange(n, device=next(method.parameters()).device)
    # Batch normalisation needs two samples, so no chunk is left with one.
    parts = [
        checkpoint(
            encode,
            chunk,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _statistics_kept(method)),
        )
        for chunk in rows.tensor_split(min(-(-n // chunk_size), n // 2))
    ]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@contextmanager
def _statistics_kept(method: nn.Module) -> Iterator[None]:
    """Batch normalisation updates copies of its running statistics while a chunk is replayed."""
    norms = [module for module in method.modules() if isinstance(module, _BatchNorm)]
    kept = [(m, name, b) for m in norms for name, b in m.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)
