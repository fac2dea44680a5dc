"""Wrong arguments of the losses with their own temperatures: a ValueError that names the fix."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from macl import (
    DCLW,
    HCL,
    DySTreSS,
    FastCLIP,
    ISogCLR,
    LearnedTemperature,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)

Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
INDICES = torch.arange(4)
SOG = SogCLR(size=4)

CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "rho below 0": (lambda: ISogCLR(size=4, rho=-0.1), "rho.*0 or more"),
    "FastCLIP rho below 0": (lambda: FastCLIP(size=4, rho=-1.0), "rho"),
    "TempNet rho below 0": (lambda: TempNet(3, size=4, rho=-1.0), "rho"),
    "rho NaN": (lambda: ISogCLR(size=4, rho=math.nan), "rho"),
    "rho of version 1": (lambda: FastCLIP(size=4, version=1, rho=1.0), "versions 2 and 3"),
    "gamma 0": (lambda: SogCLR(size=4, gamma=0.0), "gamma.*at most 1"),
    "gamma above 1": (lambda: ISogCLR(size=4, gamma=1.1), "gamma"),
    "gamma NaN": (lambda: FastCLIP(size=4, gamma=math.nan), "gamma"),
    "gamma_epochs": (lambda: FastCLIP(size=4, gamma_epochs=-1), "gamma_epochs"),
    "size 0": (lambda: SogCLR(size=0), r"size=len\(dataset\)"),
    "size below 0": (lambda: TempNet(3, size=-1), "size"),
    "size a float": (lambda: SogCLR(size=2.5), "size"),  # type: ignore[arg-type]
    "no size": (lambda: SogCLR()(Z, Z, indices=INDICES), r"size=len\(dataset\)"),
    "version": (lambda: FastCLIP(size=4, version=4), "0, 1, 2 or 3"),  # type: ignore[arg-type]
    "epsilon": (lambda: FastCLIP(size=4, epsilon=-1.0), "epsilon"),
    "beta": (lambda: ISogCLR(size=4, beta=0.0), "beta"),
    "eta": (lambda: ISogCLR(size=4, eta=-1.0), "eta"),
    "clip": (lambda: ISogCLR(size=4, clip=0.0), "clip"),
    "start outside the bounds": (lambda: ISogCLR(2.0, size=4), "between tau_min"),
    "bounds the wrong way": (lambda: TempNet(3, size=4, tau_min=0.5, tau_max=0.1), "tau_min"),
    "dim": (lambda: TempNet(0, size=4), "width"),
    "another width": (lambda: TempNet(5, size=4)(Z, Z, indices=INDICES), r"TempNet\(3"),
    "dropout": (lambda: TempNet(3, size=4, dropout=1.0), "dropout"),
    "a learned SogCLR": (lambda: SogCLR(LearnedTemperature(), size=4), "FastCLIP"),
    "no indices": (lambda: SOG(Z, Z), r"pass indices=\(N,\)"),
    "no indices for similarities": (
        lambda: SOG.from_similarities(torch.ones(3, 1), torch.ones(3, 2)),
        "pass indices",
    ),
    "indices too short": (lambda: SOG(Z, Z, indices=INDICES[:3]), r"\(4,\)"),
    "indices as floats": (lambda: SOG(Z, Z, indices=INDICES.float()), "integer"),
    "indices as a mask": (lambda: SOG(Z, Z, indices=INDICES > 1), "integer"),
    "indices above": (lambda: SOG(Z, Z, indices=INDICES + 1), "1 to 4, outside.*0 to 3"),
    "indices below": (lambda: SOG(Z, Z, indices=INDICES - 1), "outside"),
    "DySTreSS the wrong way": (lambda: DySTreSS(0.2, 0.1), "swap"),
    "DySTreSS at 0": (lambda: DySTreSS(0.0, 0.1), "tau_min"),
    "width without shift": (lambda: DySTreSS(width=0.5), "give shift"),
    "width 0": (lambda: DySTreSS(shift=0.4, width=0.0), "width"),
    "shift": (lambda: DySTreSS(shift=1.5), "shift"),
    "SigLIP temperature": (lambda: SigLIP(0.0), "temperature"),
    "SigLIP bias": (lambda: SigLIP(bias=math.inf), "bias"),
    "SigLIP without a single τ": (lambda: SigLIP(TemperatureFree().temperature)(Z, Z), "one temp"),
    "SupCon variant": (lambda: SupCon(variant="mean"), '"out" or "in"'),  # type: ignore[arg-type]
    "labels too short": (lambda: SupCon()(Z, Z, labels=INDICES[:2]), r"labels.*\(4,\)"),
    "labels as floats": (lambda: SupCon()(Z, Z, labels=torch.ones(4)), "integer"),
    "labels and positives": (
        lambda: SupCon()(Z, Z, labels=INDICES, positives=INDICES),
        "one of them",
    ),
    "multi-hot labels too short": (lambda: SupCon()(Z, Z, labels=torch.ones(3, 2)), r"\(4, L\)"),
    "one view without labels": (lambda: SupCon()(Z), "give labels"),
    "positives as floats": (lambda: NTXent()(Z, Z, positives=torch.ones(4)), "integer"),
    "positions of two lengths": (
        lambda: NTXent()(Z, Z, positives=(INDICES, INDICES[:2])),
        "equally long",
    ),
    "positions as floats": (
        lambda: NTXent()(Z, Z, positives=(INDICES.float(), INDICES)),
        "positions of the positive pairs",
    ),
    "views of two lengths on both sides": (
        lambda: NTXent()(Z, Z[:3], positives=(INDICES[:3], INDICES[:3])),
        'negatives="cross"',
    ),
    "a guide of one view": (lambda: NTXent()(Z, Z, guide=(Z,)), r"\(g1, g2\)"),
    "a guide of two widths": (lambda: NTXent()(Z, Z, guide=(Z, Z[:, :2])), r"\(g1, g2\)"),
    "a guide that is too short": (lambda: NTXent()(Z, Z, guide=(Z, Z[:3])), r"\(N, G\)"),
    "a guide with a bank": (lambda: NTXent()(Z, Z, bank=Z, guide=(Z, Z)), "bank_groups"),
    "a relative margin of 1": (
        lambda: NTXent(guide_margin=1.0, guide_relative=True)(Z, Z, guide=(Z, Z)),
        "between 0 and 1",
    ),
    "no dims": (lambda: NTXent(dims=()), "dims"),
    "dims of 0": (lambda: NTXent(dims=(0, None)), "leading coordinates"),
    "dims too wide": (lambda: NTXent(dims=(4,))(Z, Z), "3 coordinates"),
    "weights of dims alone": (lambda: NTXent(dim_weights=(1.0,)), "give dims"),
    "too few weights of dims": (lambda: NTXent(dims=(1, 2), dim_weights=(1.0,)), "2 dims"),
    "dims of single anchors": (lambda: NTXent(dims=(2,), reduction="none"), "reduction"),
    "dims with averages per sample": (lambda: SogCLR(size=4, dims=(2,)), "leave dims out"),
    "positives of HCL": (lambda: HCL()(Z, Z, positives=INDICES), "one positive per anchor"),
    "positives of DCLW": (lambda: DCLW()(Z, Z, positives=INDICES), "leave positives out"),
    "positives of DySTreSS": (lambda: DySTreSS()(Z, Z, positives=INDICES), "leave positives out"),
    "positives of SogCLR": (
        lambda: SOG(Z, Z, positives=INDICES, indices=INDICES),
        "leave positives out",
    ),
    "positives at several temperatures": (
        lambda: NTXent(TemperatureFree().temperature)(Z, Z, positives=INDICES),
        "leave positives out",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_mistake_is_explained(call: str) -> None:
    wrong, message = CALLS[call]
    with pytest.raises(ValueError, match=message):
        wrong()


def test_losses_without_state_ignore_indices() -> None:
    for criterion in (NTXent(), DySTreSS(), SigLIP(), SupCon()):
        assert not criterion.takes_indices
        assert torch.equal(criterion(Z, Z, indices=INDICES), criterion(Z, Z))
    assert all(loss.takes_indices for loss in (SogCLR, ISogCLR, FastCLIP, TempNet))


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="label"):
        SupCon()(Z, Z, label=INDICES)
