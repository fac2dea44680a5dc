"""Losses and temperatures by name: their typed sections, without torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, create_model

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
    them, ring passes them on block by block. The same loss and gradients."""
    precision: Literal["auto", "float32", "float16"] = "auto"
    """Of unit rows on a GPU: float16 multiplies once, float32 by three products; auto: float16 for
    embeddings in half precision, as with precision=bf16."""
    dims: list[PositiveInt | None] | None = None
    """Widths of leading coordinates whose losses are averaged, null for all (Matryoshka)."""
    guide: str | None = None
    """A run or an encoder that finds which samples are too similar to be negatives (GISTEmbed)."""
    guide_margin: NonNegativeFloat | None = None
    """How much less similar than the same sample, 1, another one has to be; 0.1 with a guide."""
    guide_relative: bool | None = None
    """The margin is a share of the similarity."""
    name: str

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """The values that fix the temperature at `level`; None where it is fixed as it is."""
        temperature = getattr(self, "temperature", None)
        adapts = isinstance(temperature, Section) or temperature == "auto"
        return {"temperature": level} if adapts else None


class MACLConfig(LossSection):
    """Model-aware contrastive loss."""

    target = "macl.losses:MACL"
    name: Literal["macl"]
    temperature: PositiveFloat | Literal["auto"] | AutoConfig = 0.1
    """τ₀, or what takes the place of the rule with α and A₀."""
    alpha: NonNegativeFloat = 0.5
    threshold: float = Field(0.0, ge=-1, le=1)
    reweight: bool = True
    floor: PositiveFloat | None = None

    def fixed_at(self, level: float) -> dict[str, Any] | None:
        """τ₀ at `level` and α = 0; None where τ is fixed already."""
        if isinstance(self.temperature, float) and not self.alpha:
            return None
        return {"temperature": level, "alpha": 0.0, "floor": None}


def _loss(target: str, name: str, **keys: Any) -> type[LossSection]:
    """The section of the class `target` of `macl.losses`: each key with its type and default."""
    fields: dict[str, Any] = {
        "target": (ClassVar[str], f"macl.losses:{target}"),
        "name": (Literal[name], ...),
        **keys,
    }
    return create_model(f"{target}Config", __base__=LossSection, __module__=__name__, **fields)


TAU = (TemperatureConfig, 0.1)

LOSSES: tuple[type[LossSection], ...] = (
    _loss("InfoNCE", "info-nce", temperature=TAU),
    _loss("NTXent", "nt-xent", temperature=TAU),
    _loss("DCL", "dcl", temperature=TAU),
    _loss("DCLW", "dclw", temperature=TAU, sigma=(PositiveFloat, 0.5)),
    _loss("FlatNCE", "flat-nce", temperature=TAU),
    _loss("DualTemperature", "dual", temperature=TAU, beta=(PositiveFloat, 10.0)),
    _loss(
        "HCL",
        "hcl",
        temperature=(TemperatureConfig, 0.5),
        beta=(NonNegativeFloat, 1.0),
        tau_plus=(float, Field(0.1, ge=0, lt=1)),
    ),
    MACLConfig,
    _loss(
        "DySTreSS",
        "dystress",
        tau_min=(PositiveFloat, 0.1),
        tau_max=(PositiveFloat, 0.2),
        shift=(float | None, Field(None, ge=-1, le=1)),
        width=(PositiveFloat | None, None),
    ),
    _loss("TemperatureFree", "temperature-free"),
    _loss("SigLIP", "siglip", temperature=TAU, bias=(float, -10.0)),
    _loss("SogCLR", "sogclr", temperature=(PositiveFloat | CosineConfig, 0.1), gamma=(Share, 0.9)),
    _loss(
        "ISogCLR",
        "isogclr",
        temperature=(PositiveFloat, 0.1),
        gamma=(Share, 0.8),
        rho=(NonNegativeFloat, 0.4),
        tau_min=(PositiveFloat, 0.05),
        tau_max=(PositiveFloat, 1.0),
        beta=(Share, 0.5),
        eta=(NonNegativeFloat, 0.03),
        clip=(PositiveFloat | None, None),
    ),
    _loss(
        "FastCLIP",
        "fastclip",
        temperature=(PositiveFloat, 0.07),
        version=(Literal[0, 1, 2, 3], 3),
        rho=(NonNegativeFloat | None, None),
        gamma=(Share, 0.2),
        gamma_epochs=(int | None, Field(None, ge=0)),
        tau_min=(PositiveFloat, 0.01),
        tau_max=(PositiveFloat, 1.0),
        epsilon=(NonNegativeFloat, 0.0),
        eta=(NonNegativeFloat, 0.0133),
        clip=(PositiveFloat, 5.0),
    ),
    _loss(
        "TempNet",
        "tempnet",
        needs_dim=(ClassVar[bool], True),
        rho=(NonNegativeFloat, 7.0),
        gamma=(Share, 0.8),
        tau_min=(PositiveFloat, 0.005),
        tau_max=(PositiveFloat, 0.05),
        dropout=(float, Field(0.0, ge=0, lt=1)),
    ),
    _loss("SupCon", "supcon", temperature=TAU, variant=(Literal["out", "in"], "out")),
)
"""The built-in losses; `macl.losses` entry points add others."""
