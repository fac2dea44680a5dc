"""Many processes, one batch: gather with gradient, global mean, global counts.

The contract (often reported wrong in other libraries): each rank contrasts its own anchors with
all ranks' keys and takes the mean over its own anchors; keys are gathered *with* gradient; data
parallelism then averages the ranks' gradients, and the result is the gradient that one process
would compute from the whole batch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes, 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process' number, 0 outside torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translate a failed exchange into a RuntimeError that says what failed and what to check.

    Args:
        what: the exchange, as the subject of a sentence.
    """
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} failed on rank {rank()} of {world_size()}: another rank has ended, does not "
            "answer, or calls something else. Look for the first error in the logs of the other "
            "ranks (out of memory is common); check that every rank calls the loss, and backward, "
            "equally often and with the same settings; if a rank is only slow, give "
            f"init_process_group a longer timeout. The backend reports: {error}"
        ) from error


def warn_if_alone() -> None:
    """Warn once if a launcher started several processes but torch.distributed is not initialised.

    Keys of other ranks cannot be used then.
    """
    if torch.compiler.is_compiling() or (dist.is_available() and dist.is_initialized()):
        return
    _warn_if_launched()


@cache
def _warn_if_launched() -> None:
    # A step of srun knows its own number of tasks; SLURM_NTASKS is that of the whole allocation.
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        count = os.environ.get(name, "")
        if not count.isdecimal():
            continue
        if int(count) > 1:
            warnings.warn(
                f"gather has no effect: the launcher set {name}={count}, but torch.distributed is "
                "not initialised, so each process contrasts its own batch only. Call "
                "torch.distributed.init_process_group() before the first loss (under SLURM, start "
                "the processes with srun), or use gather=False.",
                stacklevel=2,
            )
        return


def global_sum(value: Tensor) -> Tensor:
    """Sum of a detached tensor over all ranks; `value` itself outside torch.distributed."""
    total = value.detach().clone()
    if world_size() > 1:
        with explained("the sum over all ranks"):
            dist.all_reduce(total)
    return total


def global_mean(values: Tensor) -> Tensor:
    """Mean over the elements of every rank's `values`, detached; ranks may differ in length."""
    values = values.detach()
    if world_size() == 1:
        return values.mean()
    total = global_sum(torch.stack([values.sum(), values.new_tensor(float(values.numel()))]))
    return total[0] / total[1]


def batch_sizes(local: int) -> list[int]:
    """The number of rows that each rank holds, in rank order; nothing waits for a device."""
    return [local] if world_size() == 1 else _between_hosts(local, "the exchange of batch sizes")


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true on any rank; nothing waits for a device."""
    return flag if world_size() == 1 else any(_between_hosts(flag, "the exchange of a flag"))


def _between_hosts(number: int, what: str) -> list[int]:
    """Every rank's number, in rank order, exchanged between the hosts."""
    group, device = _host_group()
    own = torch.tensor([number], dtype=torch.int64, device=device)
    found = [torch.empty_like(own) for _ in range(world_size())]
    with explained(what):
        dist.all_gather(found, own, group)
    return torch.cat(found).tolist()


_HOSTS: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
"""The second group of a default group. Weak: a group that is kept beyond `destroy_process_group`
ends with the interpreter, when its threads can no longer be joined, and aborts the process."""


def _host_group() -> tuple[dist.ProcessGroup, torch.device]:
    """A group of all ranks that takes CPU tensors, and the device of what it takes.

    The default group if it does, else a second one over gloo, made at the first call. Where torch
    has no gloo it is the default one with tensors on the accelerator, which are waited for.
    """
    default = cast("dist.ProcessGroup", dist.group.WORLD)
    host, backends = torch.device("cpu"), dist.get_backend_config(default)  # "cuda:nccl"
    if "cpu:" in backends:
        return default, host
    if not dist.is_gloo_available():
        return default, torch.device(backends.partition(":")[0])
    known = _HOSTS.get(default)
    second = None if known is None else known()
    if second is None:
        second = dist.new_group(backend="gloo")
        _HOSTS[default] = ref(second)
    return cast("dist.ProcessGroup", second), host


def gather(rows: Tensor, sizes: list[int]) -> Tensor:
    """All ranks' rows, (Σ sizes, …), in rank order; gradients flow back to each rank."""
    if world_size() == 1:
        return rows
    return _Gather.apply(rows, sizes)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        widest = max(sizes)  # collective calls need equal shapes: a short last batch is padded
        padded = rows.new_zeros((widest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        with explained("gathering rows from all ranks"):
            dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        with explained("returning the gradients of gathered rows"):
            dist.all_reduce(grad)  # every rank's loss depends on my rows: their gradients add up
        start = sum(ctx.sizes[: rank()])
        return grad[start : start + ctx.sizes[rank()]], None
