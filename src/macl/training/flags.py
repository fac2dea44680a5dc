"""Boolean metrics between two logged rows: in which share of the steps each was true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class FlagShares:
    """Counts boolean metrics on their device; the counts are part of the checkpoint."""

    def __init__(self) -> None:
        self.counts: dict[str, Tensor] = {}
        self.steps = 0

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Count the booleans among a step's metrics."""
        self.steps += 1
        for name, value in metrics.items():
            if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
                flag = torch.as_tensor(value).detach().float()
                before = self.counts.get(name)
                self.counts[name] = flag if before is None else before.to(flag.device) + flag

    def take(self) -> dict[str, Tensor]:
        """The shares since the last call."""
        shares = {name: count / self.steps for name, count in self.counts.items()}
        self.counts, self.steps = {}, 0
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        counts = {name: count.item() for name, count in self.counts.items()}
        return {"counts": counts, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`'s numbers."""
        counts = state.get("counts", {})
        self.counts = {name: torch.tensor(count) for name, count in counts.items()}
        self.steps = state.get("steps", 0)
