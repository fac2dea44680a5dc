"""Equal texts of a batch, found by their token ids: rows that must not be each other's negatives.

Nothing is read back from the device, and no text is kept: a text is a number of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macl import distributed

OTHER_INPUTS = ("pixel", "image", "video", "audio", "input_features", "input_values")
"""Parts of the names of inputs that token ids say nothing about."""

PLACES = 2**16
"""Number of positions in a text that have distinct hash weights."""


class Duplicates(NamedTuple):
    """Groups of rows that share a text."""

    groups: Tensor
    """(N,) the group of each row, the same number on every rank."""
    hard_groups: Tensor | None
    """(H,) of each hard negative: that of the rows that hold its text, else a negative number."""
    number: Tensor
    """Scalar: rows that are not the first of their group, and hard negatives with a group."""


def find_duplicates(
    columns: Sequence[Mapping[str, Any]], pairs: int = 2, gather: bool = False
) -> Duplicates | None:
    """Rows that share a text, directly or through others; None where inputs are not texts alone.

    Args:
        columns: token tensors by column: `pairs` columns of anchors and positives, then negatives.
        pairs: columns whose equal texts join rows. Negatives join none.
        gather: rows of all ranks are compared.
    """
    by_column = [fingerprints(column) for column in columns]
    texts = [text for text in by_column if text is not None]
    if len(texts) < len(by_column):
        return None
    rows = torch.stack(texts[:pairs], 1)
    sizes, rank = [len(rows)], 0
    if gather:
        sizes, rank = distributed.batch_sizes(len(rows)), distributed.rank()
        rows = distributed.gather(rows, sizes)
    labels = connected(rows)
    own = labels.split(sizes)[rank]
    count = (own != torch.arange(len(labels), device=own.device).split(sizes)[rank]).sum()
    hard_groups = None
    if len(texts) > pairs:
        known, order = rows.flatten().sort()
        hard = torch.cat(texts[pairs:])
        at = torch.searchsorted(known, hard).clamp(max=len(known) - 1)
        is_known = known[at] == hard
        hard_groups = torch.where(is_known, labels[order[at] // rows.shape[1]], -1)
        count = count + is_known.sum()
    return Duplicates(own, hard_groups, count)


def fingerprints(column: Mapping[str, Any]) -> Tensor | None:
    """(N,) a number of 64 bits for each text of a column: equal for equal ids without padding.

    Padded ids are (N, T) with an attention mask; flattened ones have the texts' first positions as
    `cu_seq_lens_q` (N + 1,) or `offsets` (N,). The sum of id·r_t over random odd r_t, modulo 2⁶⁴:
    two texts agree by chance once in some 10¹⁴ comparisons.
    """
    ids = column.get("input_ids")
    if not isinstance(ids, Tensor) or any(part in key for key in column for part in OTHER_INPUTS):
        return None
    flat = column.get("cu_seq_lens_q", column.get("offsets"))
    if isinstance(flat, Tensor):
        starts = flat[:-1] if "cu_seq_lens_q" in column else flat
        ids = ids.flatten().long()
        at = torch.arange(len(ids), device=ids.device)
        row = torch.searchsorted(starts.contiguous(), at, right=True) - 1
        terms = (ids + 1) * _multipliers(ids.device)[(at - starts[row]) % PLACES]
        return terms.new_zeros(len(starts)).index_add(0, row, terms)
    mask = column.get("attention_mask")
    real = torch.ones_like(ids) if mask is None else mask.long()
    # Counted from a text's own first token, so that padding on the left changes nothing.
    place = (real.cumsum(1) - 1).clamp(min=0)
    return ((ids.long() + 1) * real * _multipliers(ids.device)[place % PLACES]).sum(1)


@cache
def _multipliers(device: torch.device) -> Tensor:
    """Fixed random odd numbers, one for each place in a text."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(-(2**62), 2**62, (PLACES,), generator=generator) * 2 + 1).to(device)


def connected(texts: Tensor) -> Tensor:
    """(N,) for each row of (N, C) texts the first row that it is joined to by equal texts."""
    rows, columns = texts.shape
    numbers = torch.searchsorted(texts.flatten().sort().values, texts)  # equal for equal texts
    labels = torch.arange(rows, device=texts.device)
    # A round brings the least grandparent among the rows of a text to all of them and to their
    # parents (FastSV, Zhang et al. 2020): some log N rounds do.
    for _ in range(2 * rows.bit_length()):
        grand = labels[labels]
        lowest = torch.full((rows * columns,), rows, device=texts.device)
        reached = grand.repeat_interleave(columns)
        near = lowest.scatter_reduce(0, numbers.flatten(), reached, "amin")[numbers].amin(1)
        labels = torch.minimum(grand, near).scatter_reduce(0, labels, near, "amin")
    return labels[labels]
