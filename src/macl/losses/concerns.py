"""What a loss can state about its own settings, given how it acts on a sample of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Acting(NamedTuple):
    """How a loss acts on a sample, (n,) for n anchors."""

    temperature: Tensor
    """τ."""
    negatives: Tensor
    """Number of negatives K."""
    pull: Tensor
    """−τ ∂L/∂s⁺, the factor with which the positive is attracted."""
    push: Tensor
    """τ Σ_j ∂L/∂s_j, that with which the negatives are repelled."""


@dataclass(frozen=True)
class Concern:
    """A setting of a loss that does not fit the embeddings or the batch."""

    state: str
    """What is wrong, a clause without a full stop."""
    change: str
    """What to change, a sentence with the keys of a recipe."""
    reason: str
    evidence: Mapping[str, float] = field(default_factory=dict)
