"""Batches larger than memory: encode in chunks, loss on the whole, encode again for the gradient.

Gradient caching (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory
limited setup"): activations for the backward pass are in memory for one chunk at a time, while the
loss is computed on the embeddings of the whole batch. A step costs one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_chunks(
    encode: Callable[[Tensor], Sequence[Tensor]],
    rows: int,
    chunk: int,
    module: nn.Module,
) -> tuple[Tensor, ...]:
    """(rows, D) embeddings that `encode` makes, with activations in memory for `chunk` at a time.

    The gradient is that of encoding the chunks one after the other: each is encoded a second time
    in the backward pass, from the same random state and under the same autocast. Batch
    normalization sees one chunk at a time and updates its running statistics once per chunk;
    everything else is as without chunks.

    It is one backward pass for autograd, so a parameter's gradient is complete before
    DistributedDataParallel sends it: one exchange per step, as without chunks.

    Args:
        encode: the embeddings, (n, D) each, of the samples at these (n,) positions. It treats
            samples independently of each other, except in batch normalization.
        rows: samples in the batch.
        chunk: most samples in a chunk; one more where a chunk of one would be left.
        module: what `encode` applies.
    """
    # On the device of the weights: its generator is one of those that `checkpoint` restores.
    first = next(module.parameters(), None)
    positions = torch.arange(rows, device=None if first is None else first.device)
    # Batch normalization needs two samples, so no chunk is left with one.
    parts = [
        checkpoint(
            encode,
            part,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), statistics_kept(module)),
        )
        for part in positions.tensor_split(max(1, min(-(-rows // chunk), rows // 2)))
    ]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch normalization updates copies of its running statistics inside."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    kept = [(m, name, b) for m in norms for name, b in m.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)
