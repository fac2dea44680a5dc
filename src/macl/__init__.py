"""Contrastive representation learning whose temperature adapts to the model.

    from macl import MACL
    criterion = MACL(temperature=0.1, alpha=0.5, threshold=0.0)
    loss = criterion(z1, z2)

Every command is also a function: `macl.train`, `macl.evaluate`, `macl.compare`, ….

Names are loaded when they are first used: importing a loss costs torch and no more, and the command
line answers before torch is loaded.
"""
# ruff: noqa: F403, F405  the losses are listed in `macl.losses`

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macl.api import (
        adapt,
        compare,
        embed,
        embed_parts,
        evaluate,
        export,
        index,
        mine,
        report,
        reproduce,
        search,
        train,
        tune,
    )
    from macl.api.objects import Index, Match, Run, Vectors
    from macl.caching import cached, plan
    from macl.core.errors import UserError
    from macl.diagnosis import Diagnosis
    from macl.losses import *

__version__ = "0.2.0"
__all__ = [
    "DCL", "DCLW", "HCL", "MACL", "AlignmentAdaptive", "AutoTemperature", "ContrastiveLoss",
    "CosineSchedule", "Diagnosis", "DualTemperature", "DySTreSS", "FastCLIP", "Fixed", "FlatNCE",
    "ISogCLR", "Index", "InfoNCE", "LearnedTemperature", "LossOutput", "Match", "NTXent", "Run",
    "SigLIP", "SogCLR", "SupCon", "TempNet", "Temperature", "TemperatureFree", "UserError",
    "Vectors", "adapt", "cached", "compare", "diagnose", "embed", "embed_parts", "evaluate",
    "export", "index", "mine", "plan", "report", "reproduce", "search", "train", "tune",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("Index", "Match", "Run", "Vectors"), "macl.api.objects"),
    **dict.fromkeys(("cached", "plan"), "macl.caching"),
    "Diagnosis": "macl.diagnosis",
    "UserError": "macl.core.errors",
}
"""Where a name is, unless it is a class of `macl.losses` or a function of `macl.api`."""
_SUBMODULES = ("criteria", "integrations", "losses", "testing")
"""Found after `import macl` alone, as in `macl.losses.selected(…)`."""


def diagnose(source: Any, *views: Any, **options: Any) -> Diagnosis:
    """Report whether embeddings, or a run, suffer from either dilemma or collapse.

    diagnose(z1, z2, temperature=0.1): two (N, D) views; see `macl.diagnosis.diagnose`.

    diagnose(run, data=None, items=1024): a run or its folder; see `macl.api.diagnose`.
    """
    is_run = isinstance(source, str | os.PathLike) or hasattr(source, "folder")
    module = importlib.import_module("macl.api" if is_run else "macl.diagnosis")
    diagnosis: Diagnosis = module.diagnose(source, *views, **options)
    return diagnosis


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"macl.{name}")
    if name in __all__ or name[0].isupper():
        usual = "macl.api" if name.islower() else "macl.losses"
        return getattr(importlib.import_module(_MODULES.get(name, usual)), name)
    raise AttributeError(f"module 'macl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
