"""Groups of rows: gathered from every rank, counted and summed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl import distributed
from macl.losses.kernels.interface import Exclusions
from macl.losses.lazy import lazy
from macl.losses.ring import Ring


def gathered_groups(groups: Tensor | None, sizes: list[int]) -> Tensor | None:
    """The groups of every rank, in rank order."""
    if groups is None or len(sizes) == 1:
        return groups
    return distributed.gather(groups, sizes)


def count_others(
    anchors: Tensor,
    columns: int,
    excluded: int,
    row_groups: Tensor | None,
    column_groups: Tensor | None,
    ring: Ring | None = None,
) -> Tensor:
    """(n,) number of negatives; an anchor's own group includes itself and its positive.

    With `ring` the columns are those of all ranks, and `column_groups` this rank's.
    """
    if row_groups is None or column_groups is None:
        return torch.full_like(anchors, float(columns - excluded), requires_grad=False)
    return (columns - count_same(row_groups, column_groups, ring)).to(anchors.dtype)


def count_same(row_groups: Tensor, column_groups: Tensor, ring: Ring | None) -> Tensor:
    """(n,) integers, the number of columns of each row's group; `ring` as in `count_others`."""
    blocks = [column_groups] if ring is None else (g for _, (g,) in ring.blocks(column_groups))
    counts = [Members(row_groups, block).count for block in blocks]
    return counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)


class Members:
    """Which keys are of each row's group: sorted and searched.

    torch.unique would ask the device how many values there are.

    Args:
        groups: (n,) integers, the group of each row.
        key_groups: (m,) those of the keys; the same tensor where the rows are the keys.
    """

    def __init__(self, groups: Tensor, key_groups: Tensor) -> None:
        self._groups, self._key_groups = groups, key_groups
        self._order = key_groups.sort().values
        self._first = torch.searchsorted(self._order, groups)

    @lazy
    def count(self) -> Tensor:
        """(n,) integers, the number of keys of each row's group."""
        return torch.searchsorted(self._order, self._groups, right=True) - self._first

    def sums(self, keys: Tensor) -> Tensor:
        """(n, D) the sum of the (m, D) keys of each row's group, 0 for a group without any."""
        # One number per group, below the number of keys: where it begins in the order.
        if self._key_groups is self._groups:
            return _summed(keys, self._first)[self._first]
        own = torch.searchsorted(self._order, self._key_groups)
        found = self._first.clamp(max=len(self._order) - 1)
        missing = self._order[found] != self._groups
        return _summed(keys, own)[found].masked_fill(missing[:, None], 0.0)


def _summed(values: Tensor, at: Tensor) -> Tensor:
    """(m, D) zeros with each value added at its number, in a fixed order on every device."""
    return torch.zeros_like(values).index_put((at,), values, accumulate=True)


def ring_sums(groups: Tensor, keys: Tensor, key_groups: Tensor, ring: Ring) -> Tensor:
    """(n, D) Σ_j k_j over all ranks' keys of each row's group, with gradient to the keys.

    Args:
        groups: (n,) integers, the group of each row.
        keys: (m, D) this rank's keys.
        key_groups: (m,) their groups.
        ring: through which the keys of all ranks pass.
    """
    sums: Tensor = _GroupSums.apply(groups, keys, key_groups, ring)
    return sums


class _GroupSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: Tensor, keys: Tensor, key_groups: Tensor, ring: Ring) -> Tensor:
        total = keys.new_zeros((len(groups), keys.shape[1]))
        for _, (block, block_groups) in ring.blocks(keys, key_groups):
            total += Members(groups, block_groups).sums(block)
        ctx.save_for_backward(groups, key_groups)
        ctx.ring = ring
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, None, None]:
        # A key gets the sum over the rows of its group: the groups alone pass around again.
        groups, key_groups = ctx.saved_tensors

        def pull(block_groups: Tensor, exclude: Exclusions) -> Tensor:
            return Members(block_groups, groups).sums(grad)

        return None, ctx.ring.collect(key_groups, Exclusions(), pull, True), None, None
