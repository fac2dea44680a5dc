"""SimCLR (Chen et al. 2020): one encoder, negatives from the batch.

On sentences with dropout as augmentation it is SimCSE, on graphs GraphCL.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl.losses import Contrast
from macl.methods.base import Method


def split_groups(groups: Tensor | None, n: int) -> tuple[Tensor | None, Tensor | None]:
    """The groups of a batch of `n`, and those of its hard negatives."""
    return (None, None) if groups is None else (groups[:n], groups[n:])


class SimCLR(Method):
    """Both views through one encoder and projector; the loss finds its negatives in the batch.

    A third view, where the data has one, holds a hard negative for each anchor; its groups, if
    there are any, follow those of the batch.
    """

    takes_negatives = True

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(z1, z2) or (z1, z2, hard)."""
        first, second, *hard = views
        return (*self.project_together(first, second), *(self.project(view) for view in hard))

    def contrast(self, *embeddings: Tensor, groups: Tensor | None = None) -> Contrast:
        """The loss on the batch's own negatives."""
        z1, z2, *hard = embeddings
        if not hard:
            return self.loss.contrast(z1, z2, groups=groups)
        own, theirs = split_groups(groups, len(z1))
        return self.loss.contrast(z1, z2, groups=own, hard=hard[0], hard_groups=theirs)
