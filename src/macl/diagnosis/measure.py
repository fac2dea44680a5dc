"""The measurements of a diagnosis: weights of a sample, its geometry, and what training logged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from macl.diagnosis.space import Confused, Space
from macl.diagnosis.weighing import Weighed

LOGGED = {"gradient_scale", "alignment", "temperature", "floored"}
"""Columns of metrics.csv that a diagnosis reads."""


@dataclass(frozen=True)
class History:
    """What training logged: (first epoch, last epoch) means, and the range of τ."""

    gradient_scale: tuple[float, float]
    alignment: tuple[float, float]
    lowest_alignment: float
    temperature: tuple[float, float]
    """(lowest, highest)."""
    floored: float
    """Share of the logged steps in which the temperature's floor was acting."""
    effective_anchors: tuple[float, float] | None = None
    """ESS; None for runs of earlier versions, which did not log it."""

    @classmethod
    def read(cls, rows: Iterable[dict[str, float]]) -> History | None:
        """From the rows of metrics.csv; None where no row has what contrastive methods log."""
        steps = [row for row in rows if row.keys() >= LOGGED]
        if not steps:
            return None

        def ends(key: str) -> tuple[float, float]:
            of_epoch = [
                [row[key] for row in steps if row["epoch"] == steps[end]["epoch"]]
                for end in (0, -1)
            ]
            first, last = (sum(values) / len(values) for values in of_epoch)
            return first, last

        temperatures = [row["temperature"] for row in steps]
        return cls(
            gradient_scale=ends("gradient_scale"),
            alignment=ends("alignment"),
            lowest_alignment=min(row["alignment"] for row in steps),
            temperature=(min(temperatures), max(temperatures)),
            floored=sum(row["floored"] for row in steps) / len(steps),
            effective_anchors=(
                ends("effective_anchors")
                if all("effective_anchors" in row for row in steps)
                else None
            ),
        )


@dataclass(frozen=True)
class Measured:
    """The measurements of a diagnosis."""

    space: Space
    """The embeddings that the loss is computed on."""
    weighed: Weighed | None = None
    """Where embeddings are contrasted: how the loss weighs them."""
    features: Space | None = None
    """The encoder's output, below the projector."""
    confused: Confused | None = None
    history: History | None = None
    names: Sequence[str] | None = None
    has_bank: bool = False
    is_what_the_loss_saw: bool = True
    """False where the projector is missing and the encoder's output is measured in its place."""
