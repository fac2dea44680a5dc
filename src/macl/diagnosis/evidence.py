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
    interval: tuple[float, float] | None
    """Its 95% interval over settings; None where there are too few for one."""
    extremes: tuple[float, float]
    """The least and the largest gain of a setting."""
    settings: int
    modalities: tuple[str, ...]
    loss: str
    source: str
    """The page with the table."""

    @property
    def certain(self) -> bool:
        """Whether the interval, or where there is none every setting, lies above 0."""
        return (self.interval or self.extremes)[0] > 0

    @property
    def words(self) -> str:
        """One sentence for the advice."""
        where = f"ESS {self.lowest:g} to {self.highest:g}; {', '.join(self.modalities)}"
        count = f"{self.settings} setting{'s' * (self.settings != 1)} ({self.source})"
        start = f"In settings like this one ({where}) {self.loss}"
        if self.interval is None:
            low, high = self.extremes
            verb = "gained" if self.certain else "changed the score by"
            span = f"{low:+.1f}" if self.settings == 1 else f"{low:+.1f} to {high:+.1f}"
            return f"{start} {verb} {span} points in {count}."
        low, high = self.interval
        verdict = "gained" if self.certain else "showed no certain gain:"
        return f"{start} {verdict} {self.mean:+.1f} [{low:+.1f}, {high:+.1f}] points over {count}."

    @property
    def values(self) -> Mapping[str, Any]:
        """The numbers."""
        return {
            "gain": self.mean,
            "gain_interval": self.interval,
            "gain_range": self.extremes,
            "settings": self.settings,
            "source": self.source,
        }


def gain_at(effective: float) -> Gain | None:
    """What the study found where InfoNCE's ESS was near `effective`; None where it has nothing."""
    content = json.loads(resources.files(__package__).joinpath("evidence.json").read_text("utf-8"))
    for found in content["bins"]:
        lowest, highest = found["effective_anchors"]
        if lowest <= effective <= highest:
            interval = found["interval"]
            return Gain(
                lowest=lowest,
                highest=highest,
                mean=found["mean"],
                interval=None if interval is None else tuple(interval),
                extremes=tuple(found["range"]),
                settings=found["settings"],
                modalities=tuple(found["modalities"]),
                loss=content["loss"],
                source=content["source"],
            )
    return None
