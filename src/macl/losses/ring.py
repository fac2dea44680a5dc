"""Contrast with every rank's keys while holding two foreign blocks of them: a ring exchange.

Rank r of R starts with its own block of keys and passes on what it has to rank r+1, so that the
blocks of ranks r−1, r−2, … arrive in R−1 rounds. Each block is contrasted while the next is in
transit (two buffers). Logsumexps of blocks are merged as they come,

    lse_i ← log(e^{lse_i} + e^{lse_i(block)}),

pair sums are added. The backward pass sends the blocks around again: each rank computes its rows'
gradient from the block at hand, and the block's gradient, which follows one round behind the block
and ends at its owner. Memory is O(n·D) per rank, where gathering needs O(R·n·D). With m keys per
rank and b bytes per number, a rank sends (R−1)·m·D·b bytes in R−1 rounds forward, and twice that in
R rounds backward.

Every rank must take part in every call, forward and backward, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from macl import distributed
from macl.losses.kernels import dispatch, operator, select
from macl.losses.kernels.autograd import Gradients
from macl.losses.kernels.interface import Exclusions, Plan, refuse_double_backward
from macl.losses.logits import Logits

_GRADIENT_TAG = 16
"""Messages of keys have smaller tags, so that the two kinds of transfer cannot be confused."""


class Ring:
    """The order of the blocks and their sizes.

    Args:
        sizes: rows of each rank's block, in rank order; the same list on every rank.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.rank, self.world = tuple(sizes), distributed.rank(), len(sizes)

    def blocks(self, *own: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """(owner, tensors) of every rank's block, this rank's first.

        A block is valid until the next one is asked for, and must not be changed.

        Args:
            own: this rank's block: tensors with `sizes[rank]` rows each.
        """
        block = tuple(part.detach().contiguous() for part in own)
        widest = max(self.sizes)
        buffers = [
            tuple(part.new_empty((widest, *part.shape[1:])) for part in block)
            for _ in range(min(2, self.world - 1))
        ]
        for step in range(self.world):
            owner, transfer = (self.rank - step) % self.world, None
            if step + 1 < self.world:
                rows = self.sizes[(owner - 1) % self.world]
                into = tuple(buffer[:rows] for buffer in buffers[step % len(buffers)])
                transfer = _Transfer(self, block, into, tag=0)
            yield owner, block
            if transfer is not None:
                block = transfer.wait()

    def excluded_blocks(
        self, keys: Tensor, exclude: Exclusions
    ) -> Iterator[tuple[Tensor, Exclusions]]:
        """Keys of every rank's block and the pairs that do not count in it.

        Args:
            keys: (m, D) this rank's block.
            exclude: pairs of this rank's rows with its own keys; its diagonals hold for this block
                alone, its groups for all.
        """
        own = [keys] if exclude.column_groups is None else [keys, exclude.column_groups]
        for owner, (block, *groups) in self.blocks(*own):
            yield (
                block,
                Exclusions(
                    exclude.diagonals if owner == self.rank else (),
                    exclude.row_groups,
                    groups[0] if groups else None,
                    exclude.only_groups,
                ),
            )

    def collect(
        self,
        keys: Tensor,
        exclude: Exclusions,
        pull: Callable[[Tensor, Exclusions], Tensor | None],
        keys_too: bool,
    ) -> Tensor | None:
        """(m, D) gradient to this rank's keys, summed over all ranks; None unless `keys_too`.

        Args:
            keys: (m, D) this rank's block.
            exclude: as for `excluded_blocks`.
            pull: called for each block; returns this rank's part of the block's gradient.
            keys_too: whether the keys need a gradient; the same on every rank.
        """
        own: Tensor | None = None
        transfer: _Transfer | None = None
        for step, (block, excluded) in enumerate(self.excluded_blocks(keys, exclude)):
            part = pull(block, excluded)
            if part is None or not keys_too:
                continue
            if step == 0:  # stays here; the sum over the other ranks starts at the next one
                own = part
                continue
            if transfer is not None:
                part = part.add_(transfer.wait()[0])
            rows = self.sizes[(self.rank - step - 1) % self.world]
            into = part.new_empty((rows, *part.shape[1:]))
            transfer = _Transfer(self, (part.contiguous(),), (into,), _GRADIENT_TAG)
        if own is not None and transfer is not None:
            own = own.add_(transfer.wait()[0])
        return own


class _Transfer:
    """Tensors on their way to the next rank while those of the previous one arrive."""

    def __init__(
        self, ring: Ring, sent: tuple[Tensor, ...], into: tuple[Tensor, ...], tag: int
    ) -> None:
        to, source = (ring.rank + 1) % ring.world, (ring.rank - 1) % ring.world
        self._what = f"the ring exchange of keys (receiving from rank {source}, sending to {to})"
        self._kept = sent  # must live until they are sent
        self._into = into
        operations = []
        for number, (out, target) in enumerate(zip(sent, into, strict=True), tag):
            operations.append(dist.P2POp(dist.isend, out, to, tag=number))
            operations.append(dist.P2POp(dist.irecv, target, source, tag=number))
        with distributed.explained(self._what):
            self._works = dist.batch_isend_irecv(operations)

    def wait(self) -> tuple[Tensor, ...]:
        """What has arrived, once it has, and once what was sent is no longer needed."""
        with distributed.explained(self._what):
            for work in self._works:
                work.wait()
        return self._into


def logsumexp(
    rows: Tensor,
    keys: Tensor,
    logits: Logits,
    exclude: Exclusions,
    ring: Ring | None,
    kernel: str | None = None,
) -> Tensor:
    """(n,) log Σ_j exp(l_ij) over the keys of all ranks; see `kernels.operator.logsumexp`.

    Args:
        rows: (n, D) this rank's anchors, unit vectors.
        keys: (m, D) this rank's keys, unit vectors; m = ring.sizes[rank].
        logits: scalar τ, (n,) τ of each row, or a map.
        exclude: pairs of this rank's rows and keys that do not count; groups hold for all ranks'.
        ring: the blocks' sizes; None where the keys are all there are.
        kernel: implementation, see `kernels.select`.
    """
    if ring is None:
        return operator.logsumexp(rows, keys, logits, exclude, kernel)
    temperature, map = (logits, None) if isinstance(logits, Tensor) else (None, logits)
    plan = Plan(exclude, "rows", map, kernel)
    return _Logsumexp.apply(rows, keys, temperature, plan, ring)


def pair_sum(
    rows: Tensor,
    keys: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    ring: Ring | None,
    function: str = "softplus",
    kernel: str | None = None,
) -> Tensor:
    """(n,) Σ_j f(offset_i + scale·r_i·k_j) over the keys of all ranks.

    Arguments as for `logsumexp` above and `kernels.operator.pair_sum`.
    """
    if ring is None:
        return operator.pair_sum(rows, keys, scale, offset, exclude, function, kernel)
    alone = offset.isneginf()
    offset = offset.masked_fill(alone, 0.0)
    sums = _PairSum.apply(rows, keys, scale, offset, exclude, ring, function, kernel)
    return sums.masked_fill(alone, 0.0)


@torch.no_grad()
def mean_logit(
    rows: Tensor,
    keys: Tensor,
    temperature: Tensor,
    lse: Tensor,
    exclude: Exclusions,
    ring: Ring | None,
    kernel: str | None = None,
) -> Tensor:
    """(n,) Σ_j e^{l_ij − lse_i}·l_ij over the keys of all ranks, detached.

    Arguments as for `logsumexp` above, whose result is `lse`, and `kernels.operator.mean_logit`.
    """
    if ring is None:
        return operator.mean_logit(rows, keys, temperature, lse, exclude, kernel)
    mean = torch.zeros_like(lse)
    for block, excluded in ring.excluded_blocks(keys, exclude):
        mean += operator.mean_logit(rows, block, temperature, lse, excluded, kernel)
    return mean


class _Logsumexp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, keys: Tensor, temperature: Tensor | None, plan: Plan, ring: Ring
    ) -> Tensor:
        total: Tensor | None = None
        for block, exclude in ring.excluded_blocks(keys, plan.exclude):
            here = dispatch.values(rows, block, temperature, _with(plan, exclude))[0]
            total = here if total is None else torch.logaddexp(total, here)
        assert total is not None
        ctx.save_for_backward(rows, keys, temperature, total)
        ctx.plan, ctx.ring = plan, ring
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        refuse_double_backward()
        rows, keys, temperature, lse = ctx.saved_tensors
        plan, keys_too = ctx.plan, ctx.needs_input_grad[1]
        d_rows = torch.zeros(rows.shape, dtype=lse.dtype, device=rows.device)

        def pull(block: Tensor, exclude: Exclusions) -> Tensor | None:
            part, d_block = dispatch.gradients(
                rows, block, temperature, _with(plan, exclude), (grad, lse), None, keys_too
            )
            d_rows.add_(part)
            return d_block

        d_keys = ctx.ring.collect(keys, plan.exclude, pull, keys_too)
        d_temperature = None
        if ctx.needs_input_grad[2]:
            d_temperature = dispatch.temperature_gradient(rows, d_rows, temperature, plan)
        return d_rows.to(rows.dtype), _like(d_keys, keys), d_temperature, None, None


class _PairSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        keys: Tensor,
        scale: Tensor,
        offset: Tensor,
        exclude: Exclusions,
        ring: Ring,
        function: str,
        kernel: str | None,
    ) -> Tensor:
        backend = select.backend(rows, kernel, None, function)
        total: Tensor | None = None
        for block, excluded in ring.excluded_blocks(keys, exclude):
            here = backend.pair_sum(rows, block, scale, offset, excluded, function)
            total = here if total is None else total.add_(here)
        assert total is not None
        ctx.save_for_backward(rows, keys, scale, offset)
        ctx.exclude, ctx.ring, ctx.function, ctx.kernel = exclude, ring, function, kernel
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        refuse_double_backward()
        rows, keys, scale, offset = ctx.saved_tensors
        backend = select.backend(rows, ctx.kernel, None, ctx.function)
        totals: list[Tensor] = []

        def pull(block: Tensor, exclude: Exclusions) -> Tensor:
            d_rows, d_block, *rest = backend.pair_sum_grad(
                rows, block, scale, offset, exclude, grad, ctx.function
            )
            parts = [d_rows, *rest]
            totals[:] = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
            return d_block

        d_keys = ctx.ring.collect(keys, ctx.exclude, pull, ctx.needs_input_grad[1])
        d_rows, d_scale, d_offset = (
            part.to(own.dtype) for part, own in zip(totals, (rows, scale, offset), strict=True)
        )
        return d_rows, _like(d_keys, keys), d_scale, d_offset, None, None, None, None


def _with(plan: Plan, exclude: Exclusions) -> Plan:
    return Plan(exclude, plan.direction, plan.map, plan.kernel)


def _like(gradient: Tensor | None, tensor: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(tensor.dtype)
