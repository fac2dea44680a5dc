"""How much of a pretrained encoder is trained: keys that encoder sections share, without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from macl.core.section import Section


class LoraSection(Section):
    """Low-rank matrices beside frozen weights (peft); merged into them when a run ends."""

    rank: PositiveInt = 8
    alpha: float | None = Field(default=None, gt=0)
    """Scale of the update times the rank; None: twice the rank."""
    targets: Literal["auto"] | tuple[str, ...] = "auto"
    """Names of layers, or their ends; auto: every linear layer, of a convolutional network every
    convolution without groups."""
    apart: bool = False
    """Also write the matrices by themselves, as peft reads them: adapter/ in the run."""


class TunableEncoder(Section):
    """Base of the encoder sections of modalities that begin with pretrained weights."""

    lora: LoraSection | None = None
    """Train low-rank matrices alone: {rank: 8}."""
    freeze: Annotated[float, Field(ge=0, le=1)] | Literal["norms"] | tuple[str, ...] = 0.0
    """What keeps its weights: the first layers, as a share of all; norms; or names of modules."""
    batch_norm: Literal["trained", "frozen"] = "trained"
    """frozen: batch normalization uses the statistics of the pretrained encoder, and keeps them."""
