"""Contrast with every rank's keys while holding two foreign blocks of them: a ring exchange.

Rank r of R starts with its own block of keys and passes on what it has to rank r+1, so that the
blocks of ranks r−1, r−2, … arrive in R−1 rounds, each contrasted while the next is in transit.
Logsumexps of blocks are merged as they come, pair sums are added. The backward pass sends the
blocks around again, each followed by its gradient, one round behind, which ends at its owner.
Memory is O(n·D) per rank, where gathering needs O(R·n·D). With m keys per rank and b bytes per
number, a rank sends (R−1)·m·D·b bytes forward, and twice that backward.

Every rank must take part in every call, forward and backward, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist
from torch import Tensor

from macl import distributed
from macl.losses.ops.tiled import Plan

_GRADIENT_TAG = 16
"""Messages of keys have smaller tags, so that the two kinds of transfer cannot be confused."""


class Ring:
    """The order of the blocks and their sizes: rows of each rank's, the same list on every rank."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.rank, self.world = tuple(sizes), distributed.rank(), len(sizes)
        self.group = distributed.current()

    def blocks(self, *own: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """(owner, tensors) of every rank's block, this rank's first.

        A block is valid until the next one is asked for, and must not be changed. `own` is this
        rank's: tensors with `sizes[rank]` rows each.
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

    def plans(self, keys: Tensor, plan: Plan) -> Iterator[tuple[Tensor, Plan]]:
        """(m, D) keys of every rank's block, this rank's first, and what is computed with it.

        `plan` is for this rank's rows and keys; positions hold for these keys alone.
        """
        for owner, (block, *parts) in self.blocks(keys, *plan.exclude.column_tensors()):
            exclude = plan.exclude.for_block(parts, owner == self.rank)
            yield block, plan._replace(exclude=exclude, ring=None)

    def collect(
        self,
        keys: Tensor,
        plan: Plan,
        gradients: Callable[[Tensor, Plan], tuple[Tensor | None, ...]],
        keys_too: bool,
    ) -> tuple[Tensor, Tensor | None, *tuple[Tensor, ...]]:
        """Gradients to this rank's rows, to its keys over all ranks (or None), and to the rest.

        `gradients` computes them for one block. `keys_too`, whether the keys need one, is the same
        on every rank.
        """
        own: Tensor | None = None
        transfer: _Transfer | None = None
        totals: list[Tensor] = []
        for step, (block, here) in enumerate(self.plans(keys, plan)):
            d_rows, part, *rest = gradients(block, here)
            mine = [x for x in (d_rows, *rest) if x is not None]
            totals = [a + b for a, b in zip(totals, mine, strict=True)] if totals else mine
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
        return totals[0], own, *totals[1:]


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
            for way, part, peer in ((dist.isend, out, to), (dist.irecv, target, source)):
                operations.append(
                    dist.P2POp(way, part, group=ring.group, tag=number, group_peer=peer)
                )
        self._group = ring.group
        with distributed.explained(self._what, self._group):
            self._works = dist.batch_isend_irecv(operations)

    def wait(self) -> tuple[Tensor, ...]:
        """What has arrived, once it has, and once what was sent is no longer needed."""
        with distributed.explained(self._what, self._group):
            for work in self._works:
                work.wait()
        return self._into
