"""Groups of rows: gathered from every rank, counted and summed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl import distributed
from macl.losses.kernels.interface import Exclusions
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
    blocks = [column_groups] if ring is None else (g for _, (g,) in ring.blocks(column_groups))
    count = torch.full_like(row_groups, columns, dtype=torch.int64)
    for block in blocks:
        # Sorted and searched: torch.unique would ask the device how many values there are.
        groups = block.sort().values
        first, last = (torch.searchsorted(groups, row_groups, right=r) for r in (False, True))
        count -= last - first
    return count.to(anchors.dtype)


def group_sums(groups: Tensor, keys: Tensor, key_groups: Tensor, ring: Ring | None) -> Tensor:
    """(n, D) Σ_j k_j over the keys of each row's group, with gradient to the keys.

    Args:
        groups: (n,) integers, the group of each row.
        keys: (m, D) this rank's keys.
        key_groups: (m,) their groups.
        ring: through which the keys of all ranks pass; None where these are all there are.
    """
    if ring is None:
        return _same_group_sums(groups, keys, key_groups)
    sums: Tensor = _GroupSums.apply(groups, keys, key_groups, ring)
    return sums


class _GroupSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: Tensor, keys: Tensor, key_groups: Tensor, ring: Ring) -> Tensor:
        total = keys.new_zeros((len(groups), keys.shape[1]))
        for _, (block, block_groups) in ring.blocks(keys, key_groups):
            total += _same_group_sums(groups, block, block_groups)
        ctx.save_for_backward(groups, key_groups)
        ctx.ring = ring
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, None, None]:
        # A key gets the sum over the rows of its group: the groups alone pass around again.
        groups, key_groups = ctx.saved_tensors

        def pull(block_groups: Tensor, exclude: Exclusions) -> Tensor:
            return _same_group_sums(block_groups, grad, groups)

        return None, ctx.ring.collect(key_groups, Exclusions(), pull, True), None, None


def _same_group_sums(groups: Tensor, values: Tensor, value_groups: Tensor) -> Tensor:
    """(n, D) the sum of the (m, D) values of each group, 0 for a group without any."""
    order = value_groups.sort().values
    # One number per group, below the number of values: where it begins in the order.
    own = torch.searchsorted(order, value_groups)
    found = torch.searchsorted(order, groups).clamp(max=len(order) - 1)
    totals = torch.zeros_like(values).index_put((own,), values, accumulate=True)
    return totals[found].masked_fill((order[found] != groups)[:, None], 0.0)
