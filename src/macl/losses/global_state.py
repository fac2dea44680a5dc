"""Numbers kept for every sample of a data set: buffers, the same on every rank.

A *slot* is one number of a buffer: sample `indices[i]` on a side. Both views of a sample share a
slot, unless the two views are modalities of their own (negatives="cross", both directions).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from macl import distributed


class SampleState(nn.Module):
    """Buffers (sides, size), one number per side and sample.

    Args:
        size: number of samples in the data set; 0 until `resize`.
        sides: 1, or 2 where the two views have numbers of their own.
        start: the buffers' names and the value that every sample starts from.
    """

    def __init__(self, size: int, sides: int, **start: float) -> None:
        super().__init__()
        self.sides, self._start = sides, start
        for name, value in start.items():
            self.register_buffer(name, torch.full((sides, size), value))

    @property
    def size(self) -> int:
        """Number of samples."""
        return next(self.buffers()).shape[1]

    def resize(self, size: int) -> None:
        """Start again with `size` samples."""
        for name, value in self._start.items():
            buffer = self.get_buffer(name)
            setattr(self, name, buffer.new_full((self.sides, size), value))

    def slots(self, indices: Tensor, anchors: int) -> Tensor:
        """(anchors,) the slot of each anchor: all samples on one side, then on the other."""
        views = anchors // len(indices)
        if self.sides == 1:
            return indices.repeat(views)
        return torch.cat([indices + side * self.size for side in range(views)])

    def read(self, name: str, slots: Tensor, like: Tensor) -> Tensor:
        """The numbers of these slots, a copy in the type of `like`."""
        return self.get_buffer(name).view(-1)[slots].to(like.dtype)

    def write(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Store numbers; equal slots must have equal values."""
        buffer = self.get_buffer(name)
        buffer.view(-1)[slots] = values.to(buffer.dtype)


def from_every_rank(values: list[Tensor], slots: Tensor) -> tuple[list[Tensor], Tensor]:
    """(n,) `values` and `slots` of all ranks, in rank order; themselves in one process."""
    if distributed.world_size() == 1:
        return values, slots
    sizes = distributed.batch_sizes(len(slots))
    rows = distributed.gather(torch.stack(values, 1), sizes)
    return list(rows.unbind(1)), distributed.gather(slots, sizes)


def mean_per_slot(slots: Tensor, counted: Tensor, values: Tensor) -> Tensor:
    """(n,) the mean of `values` over equal slots, in the place of each of them.

    Args:
        slots: (n,) integers; a sample occurs with both views, and again where a sampler pads.
        counted: (n,) 1 for the values that count and 0 for others. A slot without any gets 0.
        values: (n,) finite where they count.
    """
    first = _first(slots)
    total = _sum(first, torch.where(counted > 0, values, 0.0))
    return (total / _sum(first, counted).clamp(min=1))[first]


def log_mean_exp_per_slot(slots: Tensor, counted: Tensor, values: Tensor) -> Tensor:
    """`mean_per_slot` of exp(values), as a logarithm that does not overflow."""
    first = _first(slots)
    values = torch.where(counted > 0, values, -torch.inf)
    peak = torch.full_like(values, -torch.inf).scatter_reduce(0, first, values, "amax")[first]
    peak = torch.where(peak.isneginf(), 0.0, peak)
    return peak + mean_per_slot(slots, counted, torch.exp(values - peak)).log()


def _first(slots: Tensor) -> Tensor:
    """(n,) one number below n for each distinct slot; no size is read back from the device."""
    return torch.searchsorted(slots.sort().values, slots)


def _sum(first: Tensor, values: Tensor) -> Tensor:
    # index_put adds up in a fixed order on every device, index_add does not.
    return torch.zeros_like(values).index_put((first,), values, accumulate=True)
