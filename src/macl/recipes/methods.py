"""Methods and their heads by name: their typed sections, without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from macl.core.section import Section


class HeadConfig(Section):
    """A head, layer by layer. An empty `widths` is the identity.

    SimCLR: widths [2048, 128], norm all, bias false. MoCo: [2048, 128], norm none.
    SimCSE: ["same"], activation tanh, final_activation. GraphCL: ["same", "same"], norm none.
    """

    widths: tuple[PositiveInt | Literal["same"], ...] = ("same", 128)
    norm: Literal["none", "hidden", "all"] = "hidden"
    activation: Literal["relu", "tanh"] = "relu"
    final_activation: bool = False
    bias: bool = True


class MethodSection(Section):
    """Base of the method sections. `target` is the class whose `from_section` builds the method."""

    target: ClassVar[str]
    needs_loss: ClassVar[bool] = True
    """Whether the recipe has to name a loss."""
    name: str


class SimCLRConfig(MethodSection):
    """In-batch negatives."""

    target = "macl.methods:SimCLR"
    name: Literal["simclr"]
    projector: HeadConfig = HeadConfig()


class MoCoConfig(MethodSection):
    """Negatives from a queue of a momentum encoder's keys."""

    target = "macl.methods:MoCo"
    name: Literal["moco"]
    projector: HeadConfig = HeadConfig(norm="none")
    queue_size: PositiveInt = 65536
    momentum: float = Field(0.999, ge=0, le=1)
    bn_splits: PositiveInt = 8
    """Parts of a batch that are normalized separately when keys are encoded (shuffled BN)."""


class NNCLRConfig(MethodSection):
    """Positives from a support set."""

    target = "macl.methods:NNCLR"
    name: Literal["nnclr"]
    projector: HeadConfig = HeadConfig(widths=("same", "same", 256), norm="all")
    predictor: HeadConfig = HeadConfig(widths=(4096, "same"))
    queue_size: PositiveInt = 65536


METHODS: tuple[type[MethodSection], ...] = (SimCLRConfig, MoCoConfig, NNCLRConfig)
"""The built-in methods; `macl.methods` entry points add others."""
