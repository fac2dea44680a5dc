"""Optimizer and learning-rate schedule: their typed sections, without torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from macl.core.section import Section

Fraction = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class ScheduleConfig(Section):
    """How the learning rate moves: a linear warm-up, then one of four shapes."""

    name: Literal["cosine", "linear", "constant", "steps"] = "cosine"
    warmup_epochs: float = Field(default=0.0, ge=0)
    """May be a fraction of an epoch."""
    head_epochs: float = Field(default=0.0, ge=0)
    """At first, for so long, only the heads are trained, with optimizer.head_lr."""
    final_lr_factor: float = Field(default=0.0, ge=0, le=1)
    """Where cosine and linear end, as a fraction of the peak."""
    milestones: tuple[Fraction, ...] = ()
    """For steps: the fractions of training after which the rate drops; MoCo uses 0.6 and 0.8."""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """For steps: what the rate is multiplied by at every milestone."""

    @model_validator(mode="after")
    def _steps_need_milestones(self) -> Self:
        if self.name == "steps" and not self.milestones:
            raise ValueError("schedule 'steps' needs milestones, for example [0.6, 0.8]")
        return self


class OptimizerConfig(Section):
    """Which optimizer, and how its learning rate follows the batch size."""

    name: Literal["lars", "sgd", "adam", "adamw"] = "adam"
    lr: float = Field(default=1e-3, ge=0)
    """Base learning rate, before `lr_scaling`."""
    head_lr: float | None = Field(default=None, ge=0)
    """That of everything but the encoder: projector, predictor, learned temperature. None: `lr`."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on the encoder's rate from one layer to the one before it."""
    weight_decay: float = Field(default=1e-6, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """For lars and sgd."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """For adam and adamw: decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """For adam and adamw: added to the denominator."""
    lr_scaling: Literal["none", "linear", "linear-above-256", "sqrt"] = "none"
    """linear: lr · B/256; linear-above-256: the same, where B > 256; sqrt: lr · √B."""
    exclude_norm_and_bias: bool | None = None
    """No decay and no adaptation of biases and norm layers; unset: with lars only."""

    def learning_rate(self, batch_size: int) -> float:
        """The peak learning rate for a global batch of `batch_size`."""
        return self.lr * self.scale(batch_size)

    def scale(self, batch_size: int) -> float:
        """What a rate is multiplied by for a global batch of `batch_size`."""
        return {
            "none": 1.0,
            "linear": batch_size / 256,
            "linear-above-256": max(1.0, batch_size / 256),
            "sqrt": math.sqrt(batch_size),
        }[self.lr_scaling]
