"""Losses and temperatures by name: their typed sections, without torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, PositiveFloat, PositiveInt

from macl.core.section import Section


class TemperatureSection(Section):
    """Base of the temperature sections. `target` is the class built from the section's values."""

    target: ClassVar[str]


class CosineConfig(TemperatureSection):
    """A temperature that swings with the step."""

    target = "macl.losses:Cosine"
    name: Literal["cosine"]
    lowest: PositiveFloat = 0.1
    highest: PositiveFloat = 1.0
    period: PositiveInt = 1000


class LearnedConfig(TemperatureSection):
    """A temperature trained with the model."""

    target = "macl.losses:Learned"
    name: Literal["learned"]
    temperature: PositiveFloat = 0.07
    lowest: PositiveFloat = 0.01
    highest: PositiveFloat = 1.0


TemperatureConfig = Union[  # noqa: UP007
    PositiveFloat, Annotated[CosineConfig | LearnedConfig, Field(discriminator="name")]
]


class LossSection(Section):
    """Base of the loss sections. `target` is the class that is built from the section's values."""

    target: ClassVar[str]
    negatives: Literal["both", "cross"] | None = None
    """None: what the method asks for, else the loss' own default."""
    symmetric: bool | None = None

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """The values that fix the temperature of this loss at `level`, and change nothing else.

        None where the temperature is fixed as it is, or there is none.
        """
        adapts = isinstance(getattr(self, "temperature", None), Section)
        return {"temperature": level} if adapts else None


class InfoNCEConfig(LossSection):
    """InfoNCE."""

    target = "macl.losses:InfoNCE"
    name: Literal["info-nce"]
    temperature: TemperatureConfig = 0.1


class NTXentConfig(LossSection):
    """NT-Xent."""

    target = "macl.losses:NTXent"
    name: Literal["nt-xent"]
    temperature: TemperatureConfig = 0.1


class DCLConfig(LossSection):
    """Decoupled contrastive loss."""

    target = "macl.losses:DCL"
    name: Literal["dcl"]
    temperature: TemperatureConfig = 0.1


class DCLWConfig(LossSection):
    """DCL with weighted positives."""

    target = "macl.losses:DCLW"
    name: Literal["dclw"]
    temperature: TemperatureConfig = 0.1
    sigma: PositiveFloat = 0.5


class FlatNCEConfig(LossSection):
    """FlatNCE."""

    target = "macl.losses:FlatNCE"
    name: Literal["flat-nce"]
    temperature: TemperatureConfig = 0.1


class DualConfig(LossSection):
    """Dual temperature."""

    target = "macl.losses:DualTemperature"
    name: Literal["dual"]
    temperature: TemperatureConfig = 0.1
    beta: PositiveFloat = 10.0


class HCLConfig(LossSection):
    """Hard negatives with debiasing."""

    target = "macl.losses:HCL"
    name: Literal["hcl"]
    temperature: TemperatureConfig = 0.5
    beta: float = Field(1.0, ge=0)
    tau_plus: float = Field(0.1, ge=0, lt=1)


class MACLConfig(LossSection):
    """Model-aware contrastive loss."""

    target = "macl.losses:MACL"
    name: Literal["macl"]
    temperature: PositiveFloat = 0.1
    alpha: float = Field(0.5, ge=0)
    threshold: float = Field(0.0, ge=-1, le=1)
    reweight: bool = True
    floor: PositiveFloat | None = None

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """τ₀ at `level` and α = 0; None where α is 0 already."""
        return {"temperature": level, "alpha": 0.0, "floor": None} if self.alpha else None


LOSSES: tuple[type[LossSection], ...] = (
    InfoNCEConfig,
    NTXentConfig,
    DCLConfig,
    DCLWConfig,
    FlatNCEConfig,
    DualConfig,
    HCLConfig,
    MACLConfig,
)
"""The built-in losses; `macl.losses` entry points add others."""
