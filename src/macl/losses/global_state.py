"""Numbers kept for every sample of a data set: buffers, the same on every rank.

A *slot* is one number of a buffer: sample `indices[i]` on a side. Both views of a sample share a
slot, unless the two views are modalities of their own (negatives="cross", both directions).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses.lazy import lazy


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
            return indices.repeat(views) if views > 1 else indices
        return torch.cat([indices + side * self.size for side in range(views)])

    def anchors_per_slot(self, indices: Tensor, anchors: int) -> int:
        """How many anchors share a slot, if no index occurs twice."""
        return 1 if self.sides > 1 else anchors // len(indices)

    def read(self, name: str, slots: Tensor, like: Tensor) -> Tensor:
        """The numbers of these slots, a copy in the type of `like`."""
        return self.get_buffer(name).view(-1)[slots].to(like.dtype)

    def write(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Store numbers; equal slots must have equal values."""
        buffer = self.get_buffer(name)
        buffer.view(-1)[slots] = values.to(buffer.dtype)

    def replace(
        self, name: str, slots: Tensor, values: Tensor, old: Tensor, valid: Tensor | None
    ) -> None:
        """`write`, with the `old` numbers where the new ones are not valid; None: all are."""
        self.write(name, slots, values if valid is None else values.where(valid, old))


class Visits:
    """Which slots a batch visits, and with what: one value for all anchors of a slot.

    Both views of a sample may share a slot, and a sample occurs again where a sampler pads. Its
    anchors then count with their mean. In several processes the anchors of all ranks are joined.

    Args:
        slots: (n,) the slot of each anchor of this rank.
        views: how often a slot occurs if every sample occurs once, in (views, n/views) order; 0
            where that is not known.
    """

    def __init__(self, slots: Tensor, views: int) -> None:
        self._own, self._views = slots, views
        if distributed.world_size() > 1:
            self._views = 0
            self._sizes = distributed.batch_sizes(len(slots))
            slots = distributed.gather(slots, self._sizes)
        if self._views:
            self.slots = slots[: len(slots) // self._views]
        else:
            self.slots = slots
            # One number below n for each distinct slot; no size is read back from the device.
            self._order = slots.sort().values
            self._first = torch.searchsorted(self._order, slots)

    def gathered(self, values: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both of this rank's anchors → those of all ranks; themselves in one process.

        Args:
            values: (n,), finite where they count.
            counted: (n,) 1 for the values that count and 0 for others; None: all of them count.
                The same on all ranks in this respect.
        """
        if distributed.world_size() == 1:
            return values, counted
        if counted is None:
            return distributed.gather(values, self._sizes), None
        both = distributed.gather(torch.stack([values, counted], 1), self._sizes)
        return both[:, 0], both[:, 1]

    def mean(self, values: Tensor, counted: Tensor | None) -> Tensor:
        """The mean of `values` over the anchors of each of `slots`; 0 where none counts.

        Both as `gathered` returns them.
        """
        if counted is not None:
            values = torch.where(counted > 0, values, 0.0)
        if self._views == 1:
            return values
        if self._views and counted is None:
            return values.view(self._views, -1).mean(0)
        if self._views and counted is not None:
            total = counted.view(self._views, -1).sum(0).clamp_(min=1)
            return values.view(self._views, -1).sum(0) / total
        total = self._number if counted is None else self._sum(counted).clamp(min=1)
        return self._sum(values) / total

    def log_mean_exp(self, values: Tensor, counted: Tensor | None) -> Tensor:
        """`mean` of exp(values), as a logarithm that does not overflow; −inf where none counts."""
        if counted is not None:
            values = torch.where(counted > 0, values, -torch.inf)
        if self._views == 1:
            return values
        if self._views and counted is None:
            one, two = values.view(2, -1).unbind(0)  # a sample has no third view
            return torch.logaddexp(one, two) - math.log(2)
        if self._views and counted is not None:
            total = counted.view(self._views, -1).sum(0).clamp_(min=1)
            return torch.logsumexp(values.view(self._views, -1), 0) - total.log_()
        first = self._first
        peak = torch.full_like(values, -torch.inf).scatter_reduce(0, first, values, "amax")[first]
        if counted is not None:
            peak = torch.where(peak.isneginf(), 0.0, peak)
        return peak + self.mean(torch.exp(values - peak), counted).log()

    @lazy
    def _number(self) -> Tensor:
        """(n,) how many anchors visit the slot of each."""
        return torch.searchsorted(self._order, self.slots, right=True) - self._first

    def _sum(self, values: Tensor) -> Tensor:
        """(n,) the sum of the values over all anchors that visit the slot of each."""
        # index_put adds up in a fixed order on every device, index_add does not.
        first, zeros = self._first, torch.zeros_like(values)
        return zeros.index_put_((first,), values, accumulate=True)[first]
