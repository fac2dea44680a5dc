"""Contrastive representation learning whose temperature adapts to the model.

    from macl import MACL
    criterion = MACL(temperature=0.1, alpha=0.5, threshold=0.0)
    loss = criterion(z1, z2)

Names are loaded when they are first used: importing a loss costs torch and no more, and the command
line answers before torch is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macl.diagnosis import Diagnosis, diagnose
    from macl.losses import (
        DCL,
        DCLW,
        HCL,
        MACL,
        AlignmentAdaptive,
        Contrast,
        ContrastiveLoss,
        Cosine,
        CosineSchedule,
        DualTemperature,
        DySTreSS,
        FastCLIP,
        Fixed,
        FlatNCE,
        InfoNCE,
        ISogCLR,
        Learned,
        LearnedTemperature,
        NTXent,
        SigLIP,
        SogCLR,
        SupCon,
        Temperature,
        TemperatureFree,
        TempNet,
    )

__version__ = "0.1.0"
__all__ = [
    "DCL",
    "DCLW",
    "HCL",
    "MACL",
    "AlignmentAdaptive",
    "Contrast",
    "ContrastiveLoss",
    "Cosine",
    "CosineSchedule",
    "Diagnosis",
    "DualTemperature",
    "DySTreSS",
    "FastCLIP",
    "Fixed",
    "FlatNCE",
    "ISogCLR",
    "InfoNCE",
    "Learned",
    "LearnedTemperature",
    "NTXent",
    "SigLIP",
    "SogCLR",
    "SupCon",
    "TempNet",
    "Temperature",
    "TemperatureFree",
    "diagnose",
]
_DIAGNOSIS = ("Diagnosis", "diagnose")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "macl.diagnosis" if name in _DIAGNOSIS else "macl.losses"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'macl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
