"""Losses and temperatures by name: their typed sections, without torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, PositiveFloat, PositiveInt

from macl.core.section import Section


class TemperatureSection(Section):
    """Base of the temperature sections. `target` is the class built from the section's values."""

    target: ClassVar[str]


class CosineConfig(TemperatureSection):
    """A temperature that alternates between two values."""

    target = "macl.losses:CosineSchedule"
    name: Literal["cosine"]
    tau_min: PositiveFloat = 0.1
    tau_max: PositiveFloat = 1.0
    period: PositiveInt = 1000
    """Optimizer steps; epochs with `per_epoch`."""
    per_epoch: bool = False
    """As published: τ is constant within an epoch."""


class LearnedConfig(TemperatureSection):
    """A temperature trained with the model."""

    target = "macl.losses:LearnedTemperature"
    name: Literal["learned"]
    temperature: PositiveFloat = 0.07
    tau_min: PositiveFloat = 0.01
    tau_max: PositiveFloat = 1.0


class AutoConfig(TemperatureSection):
    """A temperature that holds the concentration of the negatives' softmax."""

    target = "macl.losses:AutoTemperature"
    name: Literal["auto"]
    kl_share: float = Field(0.44, gt=0, lt=1)
    temperature: PositiveFloat = 0.2
    """τ at the start."""
    tau_min: PositiveFloat | None = None
    tau_max: PositiveFloat | None = None


TemperatureConfig = Union[  # noqa: UP007
    PositiveFloat,
    Literal["auto"],
    Annotated[CosineConfig | LearnedConfig | AutoConfig, Field(discriminator="name")],
]


Share = Annotated[float, Field(gt=0, le=1)]
"""The weight of the new value in a moving average."""


class LossSection(Section):
    """Base of the loss sections. `target` is the class that is built from the section's values."""

    target: ClassVar[str]
    needs_dim: ClassVar[bool] = False
    """Whether the class also takes `dim`, the width of the embeddings."""
    negatives: Literal["both", "cross"] | None = None
    """None: what the method asks for, else the loss' own default."""
    symmetric: bool | None = None
    gather: Literal[True, "ring"] = True
    """How several processes contrast with each other's samples: true holds all keys in each of
    them, ring passes them on block by block. The same loss and gradients; no effect in one
    process."""
    precision: Literal["auto", "float32", "float16"] = "auto"
    """Of unit rows on a GPU: float16 multiplies once, float32 by three products; auto: float16 for
    embeddings in half precision, as with precision=bf16."""
    dims: list[PositiveInt | None] | None = None
    """Widths of leading coordinates whose losses are averaged, null for all (Matryoshka)."""
    guide: str | None = None
    """A run or an encoder, as `macl embed` takes it, that embeds the training data once: samples
    that it finds too similar are not each other's negatives (GISTEmbed)."""
    guide_margin: float | None = Field(None, ge=0)
    """How much less similar than the same sample, 1, another one has to be; 0.1 with a guide."""
    guide_relative: bool | None = None
    """The margin is a share of the similarity."""

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """The values that fix the temperature of this loss at `level`, and change nothing else.

        None where the temperature is fixed as it is, or there is none.
        """
        temperature = getattr(self, "temperature", None)
        adapts = isinstance(temperature, Section) or temperature == "auto"
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
    temperature: PositiveFloat | Literal["auto"] | AutoConfig = 0.1
    """τ₀, or what takes the place of the rule with α and A₀."""
    alpha: float = Field(0.5, ge=0)
    threshold: float = Field(0.0, ge=-1, le=1)
    reweight: bool = True
    floor: PositiveFloat | None = None

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """τ₀ at `level` and α = 0; None where τ is fixed already."""
        if isinstance(self.temperature, float) and not self.alpha:
            return None
        return {"temperature": level, "alpha": 0.0, "floor": None}


class DySTreSSConfig(LossSection):
    """A temperature for each pair, by its similarity."""

    target = "macl.losses:DySTreSS"
    name: Literal["dystress"]
    tau_min: PositiveFloat = 0.1
    tau_max: PositiveFloat = 0.2
    shift: float | None = Field(None, ge=-1, le=1)
    width: PositiveFloat | None = None


class TemperatureFreeConfig(LossSection):
    """Logits 2·artanh s, without a temperature."""

    target = "macl.losses:TemperatureFree"
    name: Literal["temperature-free"]


class SigLIPConfig(LossSection):
    """Sigmoid loss of pairs, with learned temperature and bias."""

    target = "macl.losses:SigLIP"
    name: Literal["siglip"]
    temperature: TemperatureConfig = 0.1
    bias: float = -10.0


class SogCLRConfig(LossSection):
    """Global contrastive objective, with a moving average for each sample."""

    target = "macl.losses:SogCLR"
    name: Literal["sogclr"]
    temperature: PositiveFloat | CosineConfig = 0.1
    gamma: Share = 0.9


class ISogCLRConfig(LossSection):
    """SogCLR with a temperature for each sample."""

    target = "macl.losses:ISogCLR"
    name: Literal["isogclr"]
    temperature: PositiveFloat = 0.1
    gamma: Share = 0.8
    rho: float = Field(0.4, ge=0)
    tau_min: PositiveFloat = 0.05
    tau_max: PositiveFloat = 1.0
    beta: Share = 0.5
    eta: float = Field(0.03, ge=0)
    clip: PositiveFloat | None = None


class FastCLIPConfig(LossSection):
    """Global contrastive objective with a schedule of γ and four rules for the temperature."""

    target = "macl.losses:FastCLIP"
    name: Literal["fastclip"]
    temperature: PositiveFloat = 0.07
    version: Literal[0, 1, 2, 3] = 3
    rho: float | None = Field(None, ge=0)
    gamma: Share = 0.2
    gamma_epochs: int | None = Field(None, ge=0)
    tau_min: PositiveFloat = 0.01
    tau_max: PositiveFloat = 1.0
    epsilon: float = Field(0.0, ge=0)
    eta: float = Field(0.0133, ge=0)
    clip: PositiveFloat = 5.0


class TempNetConfig(LossSection):
    """A temperature for each anchor, predicted from its embedding."""

    target = "macl.losses:TempNet"
    needs_dim = True
    name: Literal["tempnet"]
    rho: float = Field(7.0, ge=0)
    gamma: Share = 0.8
    tau_min: PositiveFloat = 0.005
    tau_max: PositiveFloat = 0.05
    dropout: float = Field(0.0, ge=0, lt=1)


class SupConConfig(LossSection):
    """Supervised contrastive loss: samples of one label are positives of each other."""

    target = "macl.losses:SupCon"
    name: Literal["supcon"]
    temperature: TemperatureConfig = 0.1
    variant: Literal["out", "in"] = "out"


LOSSES: tuple[type[LossSection], ...] = tuple(LossSection.__subclasses__())
"""The built-in losses, all of the above; `macl.losses` entry points add others."""
