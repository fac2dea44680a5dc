"""What reweighting gained in our own study, by effective anchors: the data behind the advice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Gain:
    """The gain of a loss without the factor W over InfoNCE, pooled over settings alike in ESS."""

    lowest: float
    highest: float
    """The range of ESS = (ΣW)²/(NΣW²) of InfoNCE in these settings."""
    mean: float
    """In points of each setting's own score."""
    low: float
    high: float
    """Ends of its 95% interval over settings."""
    settings: int
    modalities: tuple[str, ...]
    loss: str
    source: str
    """The page with the table."""

    @property
    def is_shown(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0

    @property
    def words(self) -> str:
        """One sentence for the advice."""
        verdict = "gained" if self.is_shown else "showed no certain gain:"
        return (
            f"In settings like this one (ESS {self.lowest:g} to {self.highest:g}; "
            f"{', '.join(self.modalities)}) {self.loss} {verdict} {self.mean:+.1f} "
            f"[{self.low:+.1f}, {self.high:+.1f}] points over {self.settings} settings "
            f"({self.source})."
        )

    @property
    def values(self) -> Mapping[str, Any]:
        """The numbers."""
        return {
            "gain": self.mean,
            "gain_interval": (self.low, self.high),
            "settings": self.settings,
            "source": self.source,
        }


def gain_at(effective: float) -> Gain | None:
    """What the study found where InfoNCE's ESS was near `effective`; None where it has nothing."""
    content = json.loads(resources.files(__package__).joinpath("evidence.json").read_text("utf-8"))
    for found in content["bins"]:
        lowest, highest = found["effective_anchors"]
        if lowest <= effective <= highest:
            mean, low, high = found["gain"]
            return Gain(
                lowest, highest, mean, low, high,
                settings=found["settings"],
                modalities=tuple(found["modalities"]),
                loss=content["loss"],
                source=content["source"],
            )  # fmt: skip
    return None
