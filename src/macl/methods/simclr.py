"""SimCLR (Chen et al. 2020): one encoder, negatives from the batch.

On sentences with dropout as augmentation it is SimCSE, on graphs GraphCL.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl.losses.build import Inputs
from macl.methods.contrastive import ContrastiveMethod


class SimCLR(ContrastiveMethod):
    """Both views through one encoder and projector; the loss finds its negatives in the batch.

    A third view, where the data has one, holds a hard negative for each anchor; its groups, if
    there are any, follow those of the batch.
    """

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(z1, z2) or (z1, z2, hard)."""
        first, second, *hard = views
        return (*self.project_together(first, second), *(self.project(view) for view in hard))

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Inputs]:
        """The two views, with hard negatives where there is a third."""
        z1, z2, *hard = embeddings
        if not hard:
            return [Inputs(z1, z2, groups=groups)]
        own, theirs = (None, None) if groups is None else (groups[: len(z1)], groups[len(z1) :])
        return [Inputs(z1, z2, groups=own, hard=hard[0], hard_groups=theirs)]

    def check_hard_negatives(self) -> None:
        """They are negatives of the first view's anchors, which needs a loss with "cross"."""
        if self.loss.negatives != "cross":
            raise ValueError(
                "hard negatives belong to the anchors of the first view: set loss.negatives=cross, "
                "or leave data.negative out."
            )
