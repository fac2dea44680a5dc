"""The recipe sections of probes, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from macl.core.section import Section


class KnnConfig(Section):
    """How the nearest neighbors vote."""

    k: int = Field(default=20, ge=1)
    """Neighbors of the kNN probe."""
    temperature: float = Field(default=0.1, gt=0)
    """Of the votes of the kNN probe, not of the loss."""


class LinearProbeConfig(Section):
    """How the classifier is trained; the defaults are the paper's for CIFAR-10."""

    optimizer: Literal["sgd", "lars", "adam"] = "sgd"
    lr: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    lr_scaling: Literal["none", "linear"] = "none"
    """linear: lr · batch_size / 256."""
    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=128, ge=1)
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    """steps: a tenth at 60% and again at 80% of training, as MoCo's own probe does."""
    augment: bool = False
    """Images: train on a new random crop and flip of every image in every epoch, as the published
    frameworks do. The training data are encoded once for each epoch instead of once."""
