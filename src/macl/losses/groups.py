"""Groups of rows: gathered from every rank, and counted."""

from __future__ import annotations

import torch
from torch import Tensor

from macl import distributed
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
