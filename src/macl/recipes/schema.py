"""The typed recipe: everything that determines a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    create_model,
    model_validator,
)
from typing_extensions import Self

from macl.core import plugins
from macl.core.section import Section
from macl.recipes.losses import LOSSES
from macl.recipes.methods import METHODS
from macl.recipes.optim import OptimizerConfig, ScheduleConfig


class Recipe(Section):
    """Everything that determines a run. The four sections of the modality are typed by it."""

    name: str
    description: str = ""
    needs: str = ""
    """What a person has to bring: data, GPUs. Empty: nothing, it runs as it is."""
    modality: str
    data: Any
    views: Any
    encoder: Any
    method: Any
    loss: Any = None
    """None for a method that has no loss of its own to choose."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: Any
    epochs: int = Field(default=100, ge=0)
    """0 keeps the encoder as it starts: what no pre-training gives."""
    batch_size: int = Field(default=256, ge=2)
    """The global batch: all processes together."""
    drop_last: bool = True
    """Leave out the last batch of an epoch when it is short."""
    accumulate: PositiveInt = 1
    """Batches per optimiser step. It adds no negatives: each batch is contrasted with itself."""
    chunk_size: int | None = Field(default=None, ge=2)
    """Samples that a process encodes at a time, for batches beyond its memory: the loss still sees
    the whole batch, for one more forward pass. Batch norm sees chunks. None: all at once."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a step with NaN or infinities; its batch is listed in faults/ anyway."""
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; None leaves it alone."""
    precision: Annotated[Literal["64", "32", "bf16", "16"], BeforeValidator(str)] = "32"
    seed: int = Field(default=0, ge=0)
    workers: int = Field(default=0, ge=0)
    """Processes that read data beside the training."""
    monitor_every: int = Field(default=10, ge=0)
    """Epochs between quick looks at the embedding (kNN where there are labels); 0 for never."""
    monitor_steps: int = Field(default=0, ge=0)
    """Optimiser steps between further such looks within an epoch; 0 for none."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Where metrics go beside metrics.csv; wandb and mlflow are extras."""
    save_every: PositiveInt = 500
    """Steps between checkpoints within an epoch; one is written after every epoch anyway."""

    @model_validator(mode="after")
    def _method_has_its_loss(self) -> Self:
        if self.loss is None and self.method.needs_loss:
            raise ValueError(f"method {self.method.name} needs a loss, such as loss=macl")
        return self


class Sections(Section):
    """The four sections that a modality types: enough to evaluate an encoder, without training."""

    data: Any
    views: Any
    encoder: Any
    evaluation: Any


def sections_model(modality: str) -> type[Sections]:
    """`Sections` with the types of one modality."""
    fields = _modality_fields(modality)
    return create_model(f"{modality.title()}Sections", __base__=Sections, **fields)


def recipe_model(modality: str, wanted: Iterable[str] = ()) -> type[Recipe]:
    """The recipe class of a modality.

    Args:
        modality: types the sections data, views, encoder and evaluation.
        wanted: names of losses and methods that may be other packages'; theirs are imported.
    """
    return _recipe_model(modality, frozenset(wanted))


@functools.cache
def _recipe_model(modality: str, wanted: frozenset[str]) -> type[Recipe]:
    losses = (*LOSSES, *_added("macl.losses", LOSSES, wanted))
    methods = (*METHODS, *_added("macl.methods", METHODS, wanted))
    fields: dict[str, Any] = {
        "modality": (Literal[modality], ...),
        "method": (_union(methods), ...),
        "loss": (_union(losses) | None, None),
        **_modality_fields(modality),
    }
    return create_model(f"{modality.title()}Recipe", __base__=Recipe, **fields)


def _modality_fields(name: str) -> dict[str, Any]:
    modality = plugins.load("macl.modalities", name)
    types = {
        "data": modality.DataConfig,
        "views": modality.ViewsConfig,
        "encoder": modality.EncoderConfig,
        "evaluation": modality.EvaluationConfig,
    }
    return {key: (kind, Field(default_factory=kind)) for key, kind in types.items()}


def _added(
    group: plugins.Group, built_in: Iterable[type[Section]], wanted: frozenset[str]
) -> list[type[Section]]:
    """The sections of other packages that are asked for by name."""
    known = {section_name(kind) for kind in built_in}
    there = set(plugins.names(group))
    return [plugins.load(group, name) for name in sorted(wanted & there) if name not in known]


def _union(kinds: Iterable[type[Section]]) -> Any:
    return Annotated[Union[tuple(kinds)], Field(discriminator="name")]  # noqa: UP007


def section_name(kind: type[BaseModel]) -> str | None:
    """The value of a `name: Literal["…"]` field, by which the kinds of a section differ."""
    field = kind.model_fields.get("name")
    names = get_args(field.annotation) if field is not None and field.is_required() else ()
    return names[0] if len(names) == 1 else None
