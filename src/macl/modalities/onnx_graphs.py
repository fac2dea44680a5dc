"""What an encoder is traced with when it is written as ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Graph(NamedTuple):
    """A network with named inputs, written to one file."""

    file: str
    network: nn.Module
    """Its result is (B, out_dim)."""
    inputs: Mapping[str, Tensor]
    """An example of each input, (B, …)."""
    as_mapping: bool = False
    """Whether the network takes the inputs as one mapping, or each by its position."""
    others: Mapping[str, Tensor] | None = None
    """Other inputs, of another size, that the file is checked with; None: random numbers."""
    free: tuple[int, ...] = (0,)
    """Dimensions of every input that may have any size: the batch, and 1 for a length."""

    def arguments(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What the network is called with."""
        return (dict(inputs),) if self.as_mapping else tuple(inputs.values())

    def checked_with(self) -> dict[str, Tensor]:
        """`others`, or three items of random numbers."""
        if self.others is not None:
            return dict(self.others)
        draw = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(3, *value.shape[1:], generator=draw)
            for name, value in self.inputs.items()
        }
