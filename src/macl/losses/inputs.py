"""What a loss is called with, and what it computes from it before the mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from macl.losses.logits import Logits


class Inputs(NamedTuple):
    """The arguments of `ContrastiveLoss.contrast`, described there."""

    z1: Tensor
    z2: Tensor | None
    bank: Tensor | None = None
    groups: Tensor | None = None
    bank_groups: Tensor | None = None
    hard: Tensor | None = None
    hard_groups: Tensor | None = None
    weights: Tensor | None = None
    bank_is_unit: bool = False
    indices: Tensor | None = None
    positives: Tensor | None = None

    def are_views_alone(self) -> bool:
        """Whether nothing but two views was given."""
        return (
            self.z2 is not None
            and self.bank is self.groups is self.hard is self.weights is self.positives is None
            and self.bank_groups is self.hard_groups is None
        )

    def views(self) -> tuple[Tensor, Tensor]:
        """Both views; where there is one view only, that twice."""
        return self.z1, self.z1 if self.z2 is None else self.z2


class Terms(NamedTuple):
    """The parts of a loss, one number per anchor."""

    logits: Logits
    """τ or the map that was used."""
    margin: Tensor | None
    """(n,) x."""
    per_anchor: Tensor
    """(n,) losses with gradient."""
    counted: Tensor | None = None
    """(n,) 1 for the anchors that enter the mean, 0 for the others; None for all of them."""
    floored: Tensor | None = None
    """Scalar bool, where the temperature module does not know it."""
    own: Mapping[str, Tensor] | None = None
    """See `Contrast.own`."""
