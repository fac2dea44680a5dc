"""The typed recipe: everything that determines a run."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, create_model

from macl import modalities
from macl.core.section import Section
from macl.optim.optimizers import OptimizerConfig
from macl.optim.schedules import ScheduleConfig
from macl.recipes.sections import LossConfig, MethodConfig


class Recipe(Section):
    """Everything that determines a run. The four sections of the modality are typed by it."""

    name: str
    description: str = ""
    needs: str = ""
    """What a person has to bring: data, GPUs. Empty: nothing, it runs as it is."""
    modality: Literal["images", "text", "graphs", "molecules"]
    data: Any
    views: Any
    encoder: Any
    method: MethodConfig
    loss: LossConfig
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
    save_every: PositiveInt = 500
    """Steps between checkpoints within an epoch; one is written after every epoch anyway."""


@functools.cache
def recipe_model(name: str) -> type[Recipe]:
    """The recipe class of the modality `name`, with its four sections typed."""
    modality = modalities.get(name)
    sections: dict[str, Any] = {
        "modality": (Literal[name], ...),
        "data": (modality.DataConfig, Field(default_factory=modality.DataConfig)),
        "views": (modality.ViewsConfig, Field(default_factory=modality.ViewsConfig)),
        "encoder": (modality.EncoderConfig, Field(default_factory=modality.EncoderConfig)),
        "evaluation": (modality.EvaluationConfig, Field(default_factory=modality.EvaluationConfig)),
    }
    return create_model(f"{name.title()}Recipe", __base__=Recipe, **sections)
