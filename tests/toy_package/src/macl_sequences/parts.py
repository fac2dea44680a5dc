"""The loss and the method that the sections name as their `target`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from macl import NTXent
from macl.methods import SimCLR
from macl.methods.heads import build_head
from macl_sequences.sections import NoisySimCLRConfig


class SoftNTXent(NTXent):
    """NT-Xent, by another name."""


class NoisySimCLR(SimCLR):
    """SimCLR that adds Gaussian noise to its embeddings in training."""

    noise: float = 0.0

    @classmethod
    def from_section(cls, section: NoisySimCLRConfig, encoder: nn.Module, loss: Any) -> NoisySimCLR:
        """Built from a recipe."""
        method = cls(encoder, build_head(section.projector, encoder.out_dim), loss)
        method.noise = section.noise
        return method

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """The embeddings of the views, with noise."""
        return tuple(z + self.noise * torch.randn_like(z) for z in super().encode(*views))
