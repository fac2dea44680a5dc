"""The recipe sections: what a user can set, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from macl.core.section import AbsolutePath, Section
from macl.recipes.losses import LossSection
from macl.recipes.methods import HeadConfig, MethodSection


class SequenceDataConfig(Section):
    """Which sequences."""

    path: AbsolutePath | None = None
    """A .csv file with a sequence of numbers per line; None: sine waves of three frequencies."""
    limit: PositiveInt | None = None
    """At most so many sequences of a split: the first ones."""


class SequenceViewsConfig(Section):
    """How two views of a sequence differ."""

    noise: float = Field(default=0.1, ge=0)
    """Standard deviation of what is added to every number."""
    scale: float = Field(default=0.2, ge=0, lt=1)
    """A view is multiplied by a number from [1 - scale, 1 + scale]."""


class SequenceEncoderConfig(Section):
    """The size of the convolutional encoder."""

    width: PositiveInt = 16


class SequenceEvaluationConfig(Section):
    """How frozen features are evaluated."""

    protocols: tuple[Literal["knn"], ...] = ("knn",)
    k: PositiveInt = 5


SECTIONS = {
    "data": SequenceDataConfig,
    "views": SequenceViewsConfig,
    "encoder": SequenceEncoderConfig,
    "evaluation": SequenceEvaluationConfig,
}


class SoftNTXentConfig(LossSection):
    """NT-Xent with a high temperature."""

    target = "macl_sequences.parts:SoftNTXent"
    name: Literal["soft-nt-xent"]
    temperature: float = Field(default=0.5, gt=0)


class NoisySimCLRConfig(MethodSection):
    """SimCLR with noise on its embeddings."""

    target = "macl_sequences.parts:NoisySimCLR"
    name: Literal["noisy-simclr"]
    projector: HeadConfig = HeadConfig(widths=("same", 16))
    noise: float = Field(default=0.01, ge=0)
