"""The loss family: mathematics only, on torch alone."""

import warnings
from typing import Any

from macl.losses.auto import AutoTemperature
from macl.losses.base import ContrastiveLoss, PairOptions
from macl.losses.family import (
    DCL,
    DCLW,
    HCL,
    MACL,
    DualTemperature,
    DySTreSS,
    FlatNCE,
    InfoNCE,
    NTXent,
    SigLIP,
    SupCon,
    TemperatureFree,
)
from macl.losses.global_losses import FastCLIP, ISogCLR, SogCLR, TempNet
from macl.losses.ops import selected
from macl.losses.output import LossOutput
from macl.losses.temperature import (
    AlignmentAdaptive,
    CosineSchedule,
    Fixed,
    LearnedTemperature,
    Statistics,
    StepInfo,
    Temperature,
    TrainingContext,
)

__all__ = [
    "DCL",
    "DCLW",
    "HCL",
    "MACL",
    "AlignmentAdaptive",
    "AutoTemperature",
    "ContrastiveLoss",
    "CosineSchedule",
    "DualTemperature",
    "DySTreSS",
    "FastCLIP",
    "Fixed",
    "FlatNCE",
    "ISogCLR",
    "InfoNCE",
    "LearnedTemperature",
    "LossOutput",
    "NTXent",
    "PairOptions",
    "SigLIP",
    "SogCLR",
    "Statistics",
    "StepInfo",
    "SupCon",
    "TempNet",
    "Temperature",
    "TemperatureFree",
    "TrainingContext",
    "selected",
]

_RENAMED = {"Contrast": LossOutput, "Cosine": CosineSchedule, "Learned": LearnedTemperature}


def __getattr__(name: str) -> Any:
    """Names of version 0.2, with a warning."""
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(
            f"macl.losses.{name} is now {new.__name__}; the old name goes in the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        return new
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
