"""Many processes, one batch: gather with gradient, global mean, global counts.

The contract (reported wrong again and again elsewhere): each rank contrasts its own anchors with
everybody's keys and takes the mean over its own anchors; keys are gathered *with* gradient; data
parallelism then averages the ranks' gradients, and the result is the gradient that one process
would compute from the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes, 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process' number, 0 outside torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


def global_sum(value: Tensor) -> Tensor:
    """Sum of a detached tensor over all ranks; `value` itself outside torch.distributed."""
    total = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


def global_mean(values: Tensor) -> Tensor:
    """Mean over the elements of every rank's `values`, detached; ranks may differ in length."""
    values = values.detach()
    if world_size() == 1:
        return values.mean()
    total = global_sum(torch.stack([values.sum(), values.new_tensor(float(values.numel()))]))
    return total[0] / total[1]


def batch_sizes(local: int, device: torch.device) -> list[int]:
    """The number of rows that each rank holds, in rank order."""
    if world_size() == 1:
        return [local]
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([local], device=device))
    return [int(size) for size in sizes]


def gather(rows: Tensor, sizes: list[int]) -> Tensor:
    """All ranks' rows, (Σ sizes, …), in rank order; gradients flow back to each rank."""
    if world_size() == 1:
        return rows
    return _Gather.apply(rows, sizes)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        widest = max(sizes)  # collective calls want equal shapes: a short last batch is padded
        padded = rows.new_zeros((widest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)  # every rank's loss depends on my rows: their gradients add up
        start = sum(ctx.sizes[: rank()])
        return grad[start : start + ctx.sizes[rank()]], None
