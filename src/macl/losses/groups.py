"""Groups of rows: gathered from every rank, and counted."""

from __future__ import annotations

import torch
from torch import Tensor

from macl import distributed


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
) -> Tensor:
    """(n,) number of negatives; an anchor's own group includes itself and its positive."""
    if row_groups is None or column_groups is None:
        return torch.full_like(anchors, float(columns - excluded), requires_grad=False)
    # Sorted and searched: torch.unique would ask the device how many values there are.
    groups = column_groups.sort().values
    first, last = (torch.searchsorted(groups, row_groups, right=right) for right in (False, True))
    return (columns - (last - first)).to(anchors.dtype)
