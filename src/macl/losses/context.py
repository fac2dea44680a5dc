"""What a loss may want to know of the training around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class TrainingContext:
    """The size of a training, given once before its first step.

    A loss with state per sample takes its size from `samples`; a schedule takes its length from
    `steps_per_epoch` and `epochs`. Steps are optimiser steps, as in `Temperature.advance`.
    """

    samples: int
    """Samples in the training data."""
    batch_size: int
    """Samples per optimiser step, over all processes."""
    steps_per_epoch: int
    """Optimiser steps in an epoch."""
    epochs: int
    labels: Tensor | None = field(default=None, compare=False, repr=False)
    """(samples,) integer classes of the training data, for losses with `takes_labels`."""

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.steps_per_epoch * self.epochs
