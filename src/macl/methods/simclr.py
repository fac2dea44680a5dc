"""SimCLR (Chen et al. 2020): one encoder, negatives from the batch.

On sentences with dropout as augmentation it is SimCSE, on graphs GraphCL.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl.losses import Contrast
from macl.methods.base import Method


class SimCLR(Method):
    """Both views through one encoder and projector; the loss finds its negatives in the batch.

    A third view, where the data has one, holds a hard negative for each anchor.
    """

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(z1, z2) or (z1, z2, hard)."""
        first, second, *hard = views
        return (*self.project_together(first, second), *(self.project(view) for view in hard))

    def contrast(self, *embeddings: Tensor, groups: Tensor | None = None) -> Contrast:
        """The loss on the batch's own negatives."""
        z1, z2, *hard = embeddings
        return self.loss.contrast(z1, z2, groups=groups, hard=hard[0] if hard else None)
