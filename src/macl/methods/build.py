"""Builds the loss and the method of a recipe from their typed sections."""

from __future__ import annotations

from typing import Any

from torch import nn

from macl.core.errors import UserError
from macl.core.plugins import load_object
from macl.losses import ContrastiveLoss, Temperature
from macl.losses.contrastive import Form
from macl.methods.base import Method, out_dim
from macl.methods.heads import head_dim
from macl.recipes.losses import LossSection, TemperatureSection
from macl.recipes.methods import MethodSection


def build_loss(section: LossSection, form: Form, dim: int) -> ContrastiveLoss:
    """The loss that `section` describes.

    A loss with state per sample takes their number later, in `setup`.

    Args:
        section: the loss by name, with its arguments.
        form: the keywords that the method asks for.
        dim: width of the embeddings.
    """
    values = {name: getattr(section, name) for name in type(section).model_fields if name != "name"}
    given = {name: value for name, value in values.items() if value is not None}
    if isinstance(temperature := given.get("temperature"), TemperatureSection):
        given["temperature"] = build_temperature(temperature)
    if section.needs_dim:
        given["dim"] = dim
    loss: ContrastiveLoss = load_object(section.target)(**{**form, **given})
    return loss


def build_temperature(section: TemperatureSection) -> Temperature:
    """The temperature that `section` describes."""
    temperature: Temperature = load_object(section.target)(**section.model_dump(exclude={"name"}))
    return temperature


def build_method(section: MethodSection, loss: LossSection | None, encoder: nn.Module) -> Method:
    """The method that `section` describes around `encoder`, with its heads and its loss.

    Raises:
        UserError: the values do not fit together.
    """
    target: type[Method] = load_object(section.target)
    name: Any = getattr(section, "name", section.target)
    described = f"method {name}" + (f" with loss {loss.name}" if loss is not None else "")  # type: ignore[attr-defined]
    try:
        built = None
        if loss is not None:
            built = build_loss(loss, target.form, _embedding_dim(section, encoder))
        return target.from_section(section, encoder, built)
    except (ValueError, RuntimeError, TypeError) as error:
        # Sizes too large for memory, or for torch, come with a trace of C++ below the first line.
        raise UserError(f"{described}: {str(error).splitlines()[0]}") from error


def _embedding_dim(section: MethodSection, encoder: nn.Module) -> int:
    """Width of the projector's output; the encoder's where the method has no projector."""
    projector, width = getattr(section, "projector", None), out_dim(encoder)
    return width if projector is None else head_dim(projector, width)
