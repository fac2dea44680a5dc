"""Loss and method by name: the typed sections of a recipe, and what is built from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from macl import losses
from macl.core.errors import UserError
from macl.core.section import Section
from macl.losses import ContrastiveLoss, Cosine, Learned, Temperature
from macl.losses.contrastive import Form
from macl.methods import NNCLR, Method, MoCo, SimCLR
from macl.methods.heads import HeadConfig, build_head, head_dim


class CosineConfig(Section):
    """A temperature that swings with the step."""

    name: Literal["cosine"]
    lowest: PositiveFloat = 0.1
    highest: PositiveFloat = 1.0
    period: PositiveInt = 1000


class LearnedConfig(Section):
    """A temperature trained with the model."""

    name: Literal["learned"]
    temperature: PositiveFloat = 0.07
    lowest: PositiveFloat = 0.01
    highest: PositiveFloat = 1.0


TemperatureConfig = Union[  # noqa: UP007
    PositiveFloat, Annotated[CosineConfig | LearnedConfig, Field(discriminator="name")]
]


class _Loss(Section):
    negatives: Literal["both", "cross"] | None = None
    """None: what the method asks for, else the loss' own default."""
    symmetric: bool | None = None


class InfoNCEConfig(_Loss):
    """InfoNCE."""

    name: Literal["info-nce"]
    temperature: TemperatureConfig = 0.1


class NTXentConfig(_Loss):
    """NT-Xent."""

    name: Literal["nt-xent"]
    temperature: TemperatureConfig = 0.1


class DCLConfig(_Loss):
    """Decoupled contrastive loss."""

    name: Literal["dcl"]
    temperature: TemperatureConfig = 0.1


class DCLWConfig(_Loss):
    """DCL with weighted positives."""

    name: Literal["dclw"]
    temperature: TemperatureConfig = 0.1
    sigma: PositiveFloat = 0.5


class FlatNCEConfig(_Loss):
    """FlatNCE."""

    name: Literal["flat-nce"]
    temperature: TemperatureConfig = 0.1


class DualConfig(_Loss):
    """Dual temperature."""

    name: Literal["dual"]
    temperature: TemperatureConfig = 0.1
    beta: PositiveFloat = 10.0


class HCLConfig(_Loss):
    """Hard negatives with debiasing."""

    name: Literal["hcl"]
    temperature: TemperatureConfig = 0.5
    beta: float = Field(1.0, ge=0)
    tau_plus: float = Field(0.1, ge=0, lt=1)


class MACLConfig(_Loss):
    """Model-aware contrastive loss."""

    name: Literal["macl"]
    temperature: PositiveFloat = 0.1
    alpha: float = Field(0.5, ge=0)
    threshold: float = Field(0.0, ge=-1, le=1)
    reweight: bool = True
    floor: PositiveFloat | None = None


LOSSES: dict[type[_Loss], type[ContrastiveLoss]] = {
    InfoNCEConfig: losses.InfoNCE,
    NTXentConfig: losses.NTXent,
    DCLConfig: losses.DCL,
    DCLWConfig: losses.DCLW,
    FlatNCEConfig: losses.FlatNCE,
    DualConfig: losses.DualTemperature,
    HCLConfig: losses.HCL,
    MACLConfig: losses.MACL,
}

LossConfig = Annotated[
    InfoNCEConfig
    | NTXentConfig
    | DCLConfig
    | DCLWConfig
    | FlatNCEConfig
    | DualConfig
    | HCLConfig
    | MACLConfig,
    Field(discriminator="name"),
]


class SimCLRConfig(Section):
    """In-batch negatives."""

    name: Literal["simclr"]
    projector: HeadConfig = HeadConfig()


class MoCoConfig(Section):
    """Negatives from a queue of a momentum encoder's keys."""

    name: Literal["moco"]
    projector: HeadConfig = HeadConfig(norm="none")
    queue_size: PositiveInt = 65536
    momentum: float = Field(0.999, ge=0, le=1)
    splits: PositiveInt = 8


class NNCLRConfig(Section):
    """Positives from a support set."""

    name: Literal["nnclr"]
    projector: HeadConfig = HeadConfig(widths=("same", "same", 256), norm="all")
    predictor: HeadConfig = HeadConfig(widths=(4096, "same"))
    queue_size: PositiveInt = 65536


MethodConfig = Annotated[SimCLRConfig | MoCoConfig | NNCLRConfig, Field(discriminator="name")]


def build_loss(config: Any, form: Form) -> ContrastiveLoss:
    """The loss that `config` names; `form` is what the method asks of it."""
    given = config.model_dump(exclude={"name", "temperature"}, exclude_none=True)
    settings: dict[str, Any] = {**form, **given, "temperature": _temperature(config.temperature)}
    return LOSSES[type(config)](**settings, gather=True)


def _temperature(config: Any) -> float | Temperature:
    if isinstance(config, CosineConfig):
        return Cosine(config.lowest, config.highest, config.period)
    if isinstance(config, LearnedConfig):
        return Learned(config.temperature, config.lowest, config.highest)
    return float(config)


def build_method(config: Any, loss: Any, encoder: nn.Module) -> Method:
    """The method that `config` names around `encoder`, with its heads and its loss.

    Raises:
        UserError: the numbers do not go together.
    """
    try:
        return _assembled(config, loss, encoder)
    except (ValueError, RuntimeError, TypeError) as error:
        # Numbers that are too large for memory, or for torch, come with a trace of C++ below them.
        reason = str(error).splitlines()[0]
        raise UserError(f"method {config.name} with loss {loss.name}: {reason}") from error


def _assembled(config: Any, loss: Any, encoder: nn.Module) -> Method:
    width: int = encoder.out_dim  # type: ignore[assignment]
    projector, dim = build_head(config.projector, width), head_dim(config.projector, width)
    if isinstance(config, MoCoConfig):
        return MoCo(
            encoder,
            projector,
            build_loss(loss, MoCo.form),
            dim,
            queue_size=config.queue_size,
            momentum=config.momentum,
            splits=config.splits,
        )
    if isinstance(config, NNCLRConfig):
        predicted = head_dim(config.predictor, dim)
        if predicted != dim:
            raise ValueError(
                f"the predictor puts out {predicted} numbers and the projector {dim}; end "
                "method.predictor.widths in 'same'."
            )
        return NNCLR(
            encoder,
            projector,
            build_head(config.predictor, dim),
            build_loss(loss, NNCLR.form),
            dim,
            queue_size=config.queue_size,
        )
    return SimCLR(encoder, projector, build_loss(loss, SimCLR.form))
