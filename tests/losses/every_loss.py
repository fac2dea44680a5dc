"""Every loss with every temperature, and the forms of a call, for tests that go through all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from macl import DCL, DCLW, HCL, MACL, ContrastiveLoss, DualTemperature, FlatNCE, InfoNCE, NTXent
from macl.losses import (
    CosineSchedule,
    DySTreSS,
    FastCLIP,
    ISogCLR,
    LearnedTemperature,
    SigLIP,
    SogCLR,
    StepInfo,
    SupCon,
    Temperature,
    TemperatureFree,
    TempNet,
)
from macl.losses.ops import CosineTemperature, InverseTanh

FORMS = ("both", "cross", "one-direction", "bank", "hard")


class PerAnchor(Temperature):
    """One trained τ for each anchor."""

    def __init__(self, temperatures: Tensor) -> None:
        super().__init__()
        self.temperatures = nn.Parameter(temperatures)

    def forward(self, step: StepInfo) -> Tensor:
        return self.temperatures


def anchors(form: str, n: int) -> int:
    return n if form in ("one-direction", "bank") else 2 * n


def per_anchor(form: str, n: int) -> PerAnchor:
    return PerAnchor(torch.linspace(0.1, 0.4, anchors(form, n)))


LOSSES: dict[str, Callable[..., ContrastiveLoss]] = {
    "InfoNCE": lambda form, n, **more: InfoNCE(**more),
    "NTXent": lambda form, n, **more: NTXent(**more),
    "DCL": lambda form, n, **more: DCL(**more),
    "DCLW": lambda form, n, **more: DCLW(**more),
    "FlatNCE": lambda form, n, **more: FlatNCE(**more),
    "DualTemperature": lambda form, n, **more: DualTemperature(**more),
    "HCL": lambda form, n, **more: HCL(**more),
    "MACL": lambda form, n, **more: MACL(**more),
    "MACL-no-reweight": lambda form, n, **more: MACL(reweight=False, **more),
    "cosine": lambda form, n, **more: NTXent(CosineSchedule(), **more),
    "learned": lambda form, n, **more: NTXent(LearnedTemperature(0.1), **more),
    "per-anchor": lambda form, n, **more: DCL(per_anchor(form, n), **more),
    "per-anchor-hcl": lambda form, n, **more: HCL(per_anchor(form, n), **more),
    "dystress": lambda form, n, **more: NTXent(CosineTemperature(0.1, 0.2), **more),
    "artanh": lambda form, n, **more: DualTemperature(InverseTanh(), **more),
}

# Losses that are more than an objective and a temperature, of n samples of width `dim`; those with
# state know n.
OTHERS: dict[str, Callable[..., ContrastiveLoss]] = {
    "SigLIP": lambda n, dim, **form: SigLIP(**form),
    "SupCon": lambda n, dim, **form: SupCon(**form),
    "SupCon-in": lambda n, dim, **form: SupCon(variant="in", **form),
    "SogCLR": lambda n, dim, **form: SogCLR(size=n, **form),
    "ISogCLR": lambda n, dim, **form: ISogCLR(size=n, **form),
    "FastCLIP-v0": lambda n, dim, **form: FastCLIP(size=n, version=0, **form),
    "FastCLIP-v1": lambda n, dim, **form: FastCLIP(size=n, version=1, **form),
    "FastCLIP-v2": lambda n, dim, **form: FastCLIP(size=n, version=2, **form),
    "FastCLIP-v3": lambda n, dim, **form: FastCLIP(size=n, version=3, **form),
    "TempNet": lambda n, dim, **form: TempNet(dim, size=n, **form),
    "DySTreSS": lambda n, dim, **form: DySTreSS(**form),
    "DySTreSS-shifted": lambda n, dim, **form: DySTreSS(shift=0.4, **form),
    "TemperatureFree": lambda n, dim, **form: TemperatureFree(**form),
}


def about_samples(criterion: ContrastiveLoss, n: int, device: str) -> dict[str, Tensor]:
    """The keywords about the samples that this loss takes: positions, or labels of 3 classes."""
    rows = torch.arange(n, device=device)
    if criterion.takes_indices:
        return {"indices": rows}
    return {"labels": rows % 3} if criterion.takes_labels else {}


def build(name: str, form: str, n: int, **more: Any) -> ContrastiveLoss:
    negatives = "both" if form == "both" else "cross"
    return LOSSES[name](form, n, negatives=negatives, symmetric=form in ("cross", "hard"), **more)


def keywords(form: str, extra: Tensor, groups: Tensor, extra_groups: Tensor) -> dict[str, Any]:
    """The call's keywords: a bank or hard negatives where the form has them, and groups."""
    if form == "bank":
        return {"bank": extra, "groups": groups, "bank_groups": extra_groups}
    if form == "hard":
        return {"hard": extra, "groups": groups, "hard_groups": extra_groups}
    return {"groups": groups}
