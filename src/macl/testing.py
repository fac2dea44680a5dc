"""Checks for contrastive losses, this library's or others': processes, reference, memory.

A loss here is any callable (z1, z2) → scalar on (N, D) embeddings. Each check raises AssertionError
with what differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

Loss = Callable[[Tensor, Tensor], Tensor]

WIDTH, OUT = 6, 5
"""Of the inputs and outputs of the linear encoder that the gradients are taken of."""


def assert_ddp_exact(
    loss: Callable[..., Any],
    *,
    alone: Loss | None = None,
    per_rank: bool = False,
    worlds: Sequence[int] = (2, 3, 4),
    rows: int = 4,
    rtol: float = 1e-8,
) -> None:
    """Check that many processes compute the value and the gradient of one process.

    A linear encoder is applied to each rank's share of a batch, and gradients are averaged as
    DistributedDataParallel does. Value and gradients of the encoder, and of the loss' parameters if
    it is a module, must be those of one process with the whole batch, in float64. Processes are
    started with gloo; outside of tests the call belongs under `if __name__ == "__main__":`.

    Args:
        loss: a module or another object that can be pickled.
        alone: the same for one process, if it is built differently; by default `loss`.
        per_rank: `loss` is a function (rank, world) → such a loss.
        worlds: numbers of processes.
        rows: pairs on each rank.
        rtol: largest difference, relative to the largest gradient.
    """
    if per_rank and alone is None:
        raise ValueError("give `alone`, the loss for one process, together with per_rank=True.")
    with tempfile.TemporaryDirectory() as folder:
        given = (loss, per_rank, tuple(worlds), rows, folder)
        spawn(_rank, given, nprocs=max(worlds))
        results = [torch.load(Path(folder) / f"{world}.pt", weights_only=True) for world in worlds]
    for world, (value, gradient) in zip(worlds, results, strict=True):
        expected, truth = _step(alone or loss, 0, 1, world * rows)
        differs = float((gradient - truth).abs().max() / truth.abs().max())
        if not torch.allclose(value, expected, rtol=rtol, atol=rtol):
            raise AssertionError(
                f"{world} processes: the mean loss is {value.item():.8g}, and in one process "
                f"{expected.item():.8g}. Every rank must contrast its anchors with the rows of all "
                "ranks."
            )
        if not differs <= rtol:
            share = float(gradient @ truth / (truth @ truth))
            raise AssertionError(
                f"{world} processes: gradients differ from those of one process by {differs:.2g} "
                f"of the largest; along them they are {share:.4g} of it. Rows must be gathered "
                "with gradient, and the sum over ranks neither left out nor counted twice."
            )


def _rank(rank: int, loss: Any, per_rank: bool, worlds: Sequence[int], rows: int, at: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    for world in (world for world in worlds if rank < world):
        place, limit = f"file://{at}/meet-{world}", timedelta(seconds=120)
        dist.init_process_group("gloo", place, limit, world_size=world, rank=rank)
        value, gradient = _step(loss(rank, world) if per_rank else loss, rank, world, rows)
        for part in (value, gradient):
            dist.all_reduce(part)
            part /= world
        if rank == 0:
            torch.save((value, gradient), Path(at) / f"{world}.pt")
        dist.destroy_process_group()


def _step(loss: Any, rank: int, world: int, rows: int) -> tuple[Tensor, Tensor]:
    """Value and gradients, flat, from this rank's rows of a batch that every rank draws alike."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(OUT, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    batch = torch.randn(2, world * rows, WIDTH, generator=generator, dtype=torch.float64)
    one, two = batch[:, rank * rows : (rank + 1) * rows] @ weight.T
    own = list(loss.double().parameters()) if isinstance(loss, nn.Module) else []
    value = loss(one, two)
    gradients = torch.autograd.grad(value, [weight, *own], allow_unused=True)
    flat = [g.flatten() for g in gradients if g is not None]
    return value.detach().clone(), torch.cat(flat)


def assert_matches_reference(
    loss: Loss,
    reference: Loss,
    *,
    shapes: Sequence[tuple[int, int]] = ((2, 3), (7, 16), (33, 8)),
    dtype: torch.dtype = torch.float64,
    rtol: float = 1e-6,
) -> None:
    """Check that two losses agree in value and gradients on random batches of these shapes.

    Args:
        loss: what is checked.
        reference: what it should be, usually slow and obvious.
        shapes: (N, D) of the batches.
        dtype: of the embeddings.
        rtol: largest difference, of the gradients relative to the largest.
    """
    for n, d in shapes:
        generator = torch.Generator().manual_seed(n)
        batch = torch.randn(2, n, d, generator=generator, dtype=torch.float64).to(dtype)
        results = []
        for each in (loss, reference):
            views = batch.clone().requires_grad_()
            value = each(*views)
            results.append((value.detach(), *torch.autograd.grad(value, views)))
        for what, one, two in zip(("value", "gradient"), *results, strict=True):
            differs = float((one - two).abs().max() / two.abs().max().clamp(min=1e-30))
            if not differs <= rtol:
                raise AssertionError(f"N={n}, D={d}: the {what} differs by {differs:.2g} of it.")


def assert_linear_memory(
    loss: Loss, *, rows: Sequence[int] = (1024, 2048, 4096), dim: int = 16, factor: float = 2.5
) -> None:
    """Check that twice the batch takes about twice the memory, forward and backward, on the CPU.

    Args:
        loss: (z1, z2) → scalar.
        rows: batch sizes, each twice the one before.
        dim: D.
        factor: the most by which the peak may grow from one size to the next; 4 is quadratic.
    """
    peaks = [_peak(loss, n, dim) for n in rows]
    for n, before, after in zip(rows[1:], peaks, peaks[1:], strict=False):
        if after > factor * before:
            raise AssertionError(
                f"from N={n // 2} to N={n} the peak memory grows from {before:,} to {after:,} "
                f"bytes, {after / before:.2f} times."
            )


def _peak(loss: Loss, n: int, dim: int) -> int:
    """The most bytes that a forward and a backward pass hold."""
    views = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        loss(*views).backward()
    results: Any = profile.kineto_results
    changes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(changes, initial=0))
