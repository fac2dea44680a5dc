"""Many processes, one batch: gather with gradient, global mean, global counts.

The contract: each rank contrasts its own anchors with all ranks' keys and takes the mean over its
own anchors; keys are gathered *with* gradient; data parallelism then averages the ranks' gradients,
and the result is the gradient that one process would compute from the whole batch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    Group = dist.ProcessGroup | None
    """The processes that exchange something; None: all of them."""


_CURRENT: list[Group] = []
"""The groups of `among`, the innermost last."""


@contextmanager
def among(process_group: Group) -> Iterator[None]:
    """Inside, everything here that names no group takes this one in place of all processes."""
    _CURRENT.append(process_group)
    try:
        yield
    finally:
        _CURRENT.pop()


def current(process_group: Group = None) -> Group:
    """The group that is meant by `process_group`."""
    return _CURRENT[-1] if process_group is None and _CURRENT else process_group


def world_size(process_group: Group = None) -> int:
    """Number of processes, 1 outside torch.distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(current(process_group))


def rank(process_group: Group = None) -> int:
    """This process' number in the group, 0 outside torch.distributed."""
    return dist.get_rank(current(process_group)) if world_size(process_group) > 1 else 0


@contextmanager
def explained(what: str, process_group: Group = None) -> Iterator[None]:
    """Translate the failure of `what`, an exchange, into an error that says what to check.

    Under NCCL nothing is raised here: its watchdog aborts the process after the timeout.
    """
    try:
        yield
    except RuntimeError as error:
        where = f"rank {rank(process_group)} of {world_size(process_group)}"
        raise RuntimeError(
            f"{what} failed on {where}: another rank has ended, does not answer, or calls "
            "something else. Look for the first error in the logs of the other ranks (out of "
            "memory is common); check that every rank calls the loss, and backward, equally often "
            "and with the same settings; if a rank is only slow, give init_process_group a longer "
            f"timeout. The backend reports: {error}"
        ) from error


def warn_if_alone() -> None:
    """Warn once if a launcher started several processes and torch.distributed is not ready."""
    if torch.compiler.is_compiling() or (dist.is_available() and dist.is_initialized()):
        return
    _warn_if_launched()


@cache
def _warn_if_launched() -> None:
    # A step of srun knows its own number of tasks; SLURM_NTASKS is that of the whole allocation.
    names = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    name = next((name for name in names if os.environ.get(name, "").isdecimal()), None)
    if name is not None and int(os.environ[name]) > 1:
        warnings.warn(
            f"gather has no effect: the launcher set {name}={os.environ[name]}, but "
            "torch.distributed is not initialized, so each process contrasts its own batch only. "
            "Call torch.distributed.init_process_group() before the first loss (under SLURM, start "
            "the processes with srun), or use gather=False.",
            stacklevel=2,
        )


def global_sum(value: Tensor, process_group: Group = None) -> Tensor:
    """Sum of a detached tensor over all ranks; `value` itself outside torch.distributed."""
    total = value.detach().clone()
    if world_size(process_group) > 1:
        with explained("the sum over all ranks", process_group):
            dist.all_reduce(total, group=current(process_group))
    return total


def global_mean(values: Tensor, process_group: Group = None) -> Tensor:
    """Mean over the elements of every rank's `values`, detached; ranks may differ in length."""
    values = values.detach()
    if world_size(process_group) == 1:
        return values.mean()
    # Filled on the device: a number copied from the host would make it wait.
    count = values.new_full((), float(values.numel()))
    total = global_sum(torch.stack([values.sum(), count]), process_group)
    return total[0] / total[1]


_EQUAL = False


@contextmanager
def equal_batches() -> Iterator[None]:
    """Every rank holds as many rows as this one inside: `batch_sizes` exchanges nothing.

    Where a rank's share differs after all, gathering fails or hangs.
    """
    global _EQUAL
    before, _EQUAL = _EQUAL, True
    try:
        yield
    finally:
        _EQUAL = before


def batch_sizes(local: int, process_group: Group = None) -> list[int]:
    """The number of rows that each rank holds, in rank order; nothing waits for a device."""
    world = world_size(process_group)
    if world == 1 or _EQUAL:
        return [local] * world
    return _between_hosts(local, "the exchange of batch sizes", process_group)


def any_rank(flag: bool, process_group: Group = None) -> bool:
    """Whether `flag` is true on any rank; nothing waits for a device."""
    if world_size(process_group) == 1:
        return flag
    return any(_between_hosts(flag, "the exchange of a flag", process_group))


def _between_hosts(number: int, what: str, process_group: Group) -> list[int]:
    """Every rank's number, in rank order, exchanged between the hosts."""
    chosen = current(process_group) or cast("dist.ProcessGroup", dist.group.WORLD)
    group, device = _host_group(chosen)
    own = torch.tensor([number], dtype=torch.int64, device=device)
    numbers = [torch.empty_like(own) for _ in range(world_size(group))]
    with explained(what, group):
        dist.all_gather(numbers, own, group)
    return torch.cat(numbers).tolist()


_HOSTS: WeakKeyDictionary[Any, Callable[[], Any]] = WeakKeyDictionary()
"""The second group of a group. Weak: a group that is kept until the interpreter ends, when its
threads can no longer be joined, aborts the process."""


def _host_group(group: dist.ProcessGroup) -> tuple[dist.ProcessGroup, torch.device]:
    """A group of the same ranks that takes CPU tensors, and the device of what it takes.

    The group itself if it does, else a second one over gloo, made at the first call. Where torch
    has no gloo it is the group itself with tensors on the accelerator, which are waited for.
    """
    host, backends = torch.device("cpu"), dist.get_backend_config(group)  # "cuda:nccl"
    if "cpu:" in backends:
        return group, host
    if not dist.is_gloo_available():
        return group, torch.device(backends.partition(":")[0])
    second = _HOSTS.get(group, lambda: None)()
    if second is None:
        ranks = dist.get_process_group_ranks(group)
        # Ranks of other groups do not take part in making it.
        second = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        _HOSTS[group] = ref(second)
    return cast("dist.ProcessGroup", second), host


def gather(rows: Tensor, sizes: list[int], process_group: Group = None) -> Tensor:
    """All ranks' rows, (Σ sizes, …), in rank order; gradients flow back to each rank."""
    if world_size(process_group) == 1:
        return rows
    widest = max(sizes)  # collective calls need equal shapes: a short batch is padded
    if len(rows) < widest:
        rows = torch.cat([rows, rows.new_zeros((widest - len(rows), *rows.shape[1:]))])
    everything: Tensor = _Gather.apply(rows, len(sizes), current(process_group))
    if min(sizes) == widest:
        return everything
    blocks = zip(everything.split(widest), sizes, strict=True)
    return torch.cat([block[:size] for block, size in blocks])


class _Gather(torch.autograd.Function):
    """One tensor each way: gathered forward, summed and dealt out to its owners backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: int, group: Group) -> Tensor:
        ctx.group, ctx.shape = group, rows.shape
        everything = rows.new_empty((world * len(rows), *rows.shape[1:]))
        with explained("gathering rows from all ranks", group):
            dist.all_gather_into_tensor(everything, rows.contiguous(), group)
        return everything

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        own = grad.new_empty(ctx.shape)
        # Every rank's loss depends on my rows: their gradients add up.
        with explained("returning the gradients of gathered rows", ctx.group):
            dist.reduce_scatter_tensor(own, grad.contiguous(), group=ctx.group)
        return own, None, None
