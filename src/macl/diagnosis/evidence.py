"""What reweighting gained in our own study, by modality and effective anchors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Gain:
    """The gain of a loss without the factor W over InfoNCE, pooled over settings alike in ESS."""

    modality: str
    effective_anchors: Sequence[float]
    """The range of ESS = (ΣW)²/(NΣW²) of InfoNCE in these settings."""
    mean: float
    """In points of each setting's own score."""
    interval: Sequence[float] | None
    """Its 95% interval over settings; None where there are too few for one."""
    range: Sequence[float]
    """The smallest and the largest gain of a setting."""
    settings: int
    loss: str
    source: str
    """The page with the table."""

    @property
    def certain(self) -> bool:
        """Whether the interval, or where there is none every setting, lies above 0."""
        return (self.interval or self.range)[0] > 0

    @property
    def words(self) -> str:
        """One sentence for the advice."""
        count = f"{self.settings} setting{'s' * (self.settings != 1)} ({self.source})"
        ess = "ESS {:g} to {:g}".format(*self.effective_anchors)
        start = f"In settings like this one ({self.modality}, {ess}) {self.loss}"
        if self.interval is not None:
            verdict = "gained" if self.certain else "showed no certain gain:"
            span = "[{:+.1f}, {:+.1f}]".format(*self.interval)
            return f"{start} {verdict} {self.mean:+.1f} {span} points over {count}."
        verb = "gained" if self.certain else "changed the score by"
        span = " to ".join(dict.fromkeys(f"{value:+.1f}" for value in self.range))
        return f"{start} {verb} {span} points in {count}."


def gains_at(effective: float, modality: str | None = None) -> list[Gain]:
    """What the study found where InfoNCE's ESS was near `effective`; of all modalities if None."""
    content = json.loads(resources.files(__package__).joinpath("evidence.json").read_text("utf-8"))
    return [
        Gain(**entry, loss=content["loss"], source=content["source"])
        for entry in content["gains"]
        if entry["effective_anchors"][0] <= effective <= entry["effective_anchors"][1]
        and modality in (None, entry["modality"])
    ]
