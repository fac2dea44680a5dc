"""Builds the loss and the method of a recipe from their typed sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from macl.core.errors import UserError
from macl.core.plugins import load_object
from macl.losses import ContrastiveLoss
from macl.methods.base import Method, out_dim
from macl.methods.heads import head_dim
from macl.recipes.losses import LossSection, TemperatureSection
from macl.recipes.methods import MethodSection

GUIDE_MARGIN = 0.1
"""Of `loss.guide`, where the recipe gives none: the two views of a sample have similarity 1."""


def build_loss(section: LossSection, options: Mapping[str, Any], dim: int) -> ContrastiveLoss:
    """The loss that `section` describes, with the `options` that the method asks for.

    `dim` is the width of the embeddings. The number of samples comes later, in `setup`.
    """
    skipped = ("name", "guide")  # the guide embeds the data; the loss is given its embeddings
    given = {key: value for key, value in section if value is not None and key not in skipped}
    if section.guide is not None:
        given.setdefault("guide_margin", GUIDE_MARGIN)
    if isinstance(tau := given.get("temperature"), TemperatureSection):
        given["temperature"] = load_object(tau.target)(**tau.model_dump(exclude={"name"}))
    if section.needs_dim:
        given["dim"] = dim
    loss: ContrastiveLoss = load_object(section.target)(**{**options, **given})
    return loss


def build_method(section: MethodSection, loss: LossSection | None, encoder: nn.Module) -> Method:
    """The method that `section` describes around `encoder`, with its heads and its loss.

    Raises:
        UserError: the values do not fit together.
    """
    target: type[Method] = load_object(section.target)
    described = f"method {section.name}" + (f" with loss {loss.name}" if loss is not None else "")
    try:
        width = out_dim(encoder)
        projector = getattr(section, "projector", None)
        dim = width if projector is None else head_dim(projector, width)
        built = None if loss is None else build_loss(loss, target.loss_options, dim)
        return target.from_section(section, encoder, built)
    except (ValueError, RuntimeError, TypeError) as error:
        # Sizes too large for memory, or for torch, come with a trace of C++ below the first line.
        raise UserError(f"{described}: {str(error).splitlines()[0]}") from error
