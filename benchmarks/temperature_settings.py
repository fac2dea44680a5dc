"""What the temperature study runs: its tasks, and the methods with their candidate settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

Setting = dict[str, Any]
"""A loss section: {"name": "nt-xent", "temperature": 0.1}, with the keys of version 0.2, by which
lines name their settings; `section` has today's."""

RENAMED = {"lowest": "tau_min", "highest": "tau_max", "form": "variant"}


def section(setting: Setting) -> Setting:
    """The loss section of a recipe."""
    return {
        RENAMED.get(key, key): section(value) if isinstance(value, dict) else value
        for key, value in setting.items()
    }


@dataclass(frozen=True)
class Task:
    """A data set with an encoder, and how settings are chosen and compared on it."""

    recipe: str
    sizes: dict[str, Any]
    """Overrides of every run."""
    choose: dict[str, Any]
    """Further overrides while settings are chosen."""
    seeds: int
    scores: tuple[str, ...]
    """The first one that the validation has decides between settings."""
    steps: int
    """Optimizer steps of a training, for the period of the cosine schedule."""
    baseline: Setting = field(default_factory=dict)
    """Of all runs of the task: values that every loss section gets."""
    reference: str = "nt-xent"
    """The method that the others are compared with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Methods that do not apply, with the reason."""


PROBES = {"monitor_every": 0, "evaluation.linear.epochs": 20}
VALIDATION = {"data.holdout": 0.2, "evaluation.split": "validation"}
ONCE = "the setup has one epoch, so every sample is met once: u is the batch's own mean"

TASKS = {
    "digits": Task(
        recipe="digits",
        sizes={**PROBES, "epochs": 15},
        choose=VALIDATION,
        seeds=5,
        scores=("knn top1", "linear top1"),
        steps=15 * 22,
    ),
    "cifar10": Task(
        recipe="cifar10-small",
        sizes={**PROBES, "epochs": 10, "data.limit": 2500},
        choose=VALIDATION,
        seeds=3,
        scores=("knn top1", "linear top1"),
        steps=10 * 39,
    ),
    "sentences": Task(
        recipe="simcse-bert",
        sizes={
            "encoder.pooling": "mean",
            "encoder.hidden_dropout": 0.1,
            "encoder.attention_dropout": 0.1,
            "optimizer.lr": 3e-4,
            "monitor_every": 0,
            "monitor_steps": 0,
            "evaluate_best": False,
        },
        # Two fifths of the steps: choosing would otherwise take as long as comparing.
        choose={
            "evaluation.protocols": ["STS-B"],
            "evaluation.split": "dev",
            "data.limit": 8000,
        },
        seeds=3,
        scores=("sts average spearman", "sts STS-B spearman"),
        steps=312,
        baseline={"negatives": "cross", "symmetric": False},
        reference="info-nce",
        left_out={
            "SogCLR": f"{ONCE}, and SogCLR is DCL scaled by τ",
            "iSogCLR": f"{ONCE}, and no τ_i is used after its first change",
            "FastCLIP v1": f"{ONCE}, and v1 is DCL",
            "SupCon": "the sentences have no labels",
        },
    ),
}


@dataclass(frozen=True)
class Method:
    """A method under its candidate settings."""

    candidates: tuple[Setting, ...]
    adapts: bool = True
    """Whether τ changes in training; the others are compared with a control at the same τ too."""
    supervised: bool = False
    has_level: bool = True
    """Whether it has a τ that a control could be fixed at."""


def methods(task: Task) -> dict[str, Method]:
    """The methods that apply to a task, the reference first.

    Candidates are around the published defaults, scaled to the batch where a default cannot work:
    ρ must lie below log K (4.1 for 63 negatives), and TempNet's bounds are for batches of CLIP's
    size. On sentences temperatures are SimCSE's, half of those on images.
    """
    text = task.reference == "info-nce"
    scale = 0.5 if text else 1.0
    levels = [round(scale * tau, 4) for tau in (0.1, 0.2, 0.4)]
    low, middle, high = levels

    def fixed(name: str, **values: Any) -> Method:
        found = tuple({"name": name, "temperature": tau, **values} for tau in levels)
        return Method(found, adapts=False)

    def several(name: str, *each: Setting, **flags: Any) -> Method:
        return Method(tuple({"name": name, **values} for values in each), **flags)

    cosine = {"name": "cosine", "period": max(1, task.steps // 5)}
    thresholds = (0.0, 0.5, 0.8) if text else (0.0, 0.3, 0.6)
    macl = {"temperature": low, "alpha": 2.0 if text else 0.5, "reweight": not text}
    found = {
        "NT-Xent" if not text else "InfoNCE": fixed(task.reference),
        "DCL": fixed("dcl"),
        "MACL": several("macl", *({**macl, "threshold": at} for at in thresholds)),
        "Cosine schedule": several(
            task.reference,
            *(
                {"temperature": {**cosine, "lowest": lowest, "highest": highest}}
                for lowest, highest in ((low, high), (low / 2, middle), (low, 10 * low))
            ),
        ),
        "Learned τ": several(
            task.reference,
            *({"temperature": {"name": "learned", "temperature": tau}} for tau in levels),
        ),
        "DySTreSS": several(
            "dystress",
            {"lowest": low, "highest": middle},
            {"lowest": round(0.7 * low, 4), "highest": middle},
            {"lowest": low, "highest": high},
            *PUBLISHED_SENTENCES * text,
        ),
        "Temperature-free": several("temperature-free", {}, adapts=False, has_level=False),
        "SigLIP": several(
            "siglip",
            *(
                {"temperature": tau, "bias": bias}
                for tau, bias in ((low, -10.0), (low, -5.0), (middle, -5.0))
            ),
        ),
        "SogCLR": fixed("sogclr"),
        "iSogCLR": several(
            "isogclr", *({"temperature": low, "rho": rho} for rho in (0.1, 0.4, 1.0))
        ),
        "FastCLIP v1": fixed("fastclip", version=1),
        "FastCLIP v3": several(
            "fastclip", *({"temperature": low, "version": 3, "rho": rho} for rho in (0.1, 0.4, 1.0))
        ),
        "TempNet": several(
            "tempnet",
            *({"lowest": low / 2, "highest": 5 * low, "rho": rho} for rho in (0.1, 0.4, 1.0)),
        ),
        "SupCon": Method(
            (
                {"name": "supcon", "temperature": low},
                {"name": "supcon", "temperature": middle},
                {"name": "supcon", "temperature": low, "form": "in"},
            ),
            adapts=False,
            supervised=True,
            has_level=False,
        ),
    }
    kept = {name: method for name, method in found.items() if name not in task.left_out}
    return {name: _with(method, task.baseline) for name, method in kept.items()}


def _with(method: Method, values: Setting) -> Method:
    candidates = tuple({**each, **values} for each in method.candidates)
    return Method(candidates, method.adapts, method.supervised, method.has_level)


PUBLISHED_SENTENCES: tuple[Setting, ...] = ({"lowest": 0.04, "highest": 0.05},)
"""DySTreSS' bounds in its SimCSE code."""

CROSS_VIEW = ("siglip", "fastclip", "tempnet", "info-nce")
"""Losses that contrast with the other view only, unless told otherwise."""


def control_level(setting: Setting, measured: float) -> float:
    """The τ that a control of a setting is fixed at; `measured` is the mean τ of its trainings.

    The level of a τ that varies is its harmonic mean, as 1/τ is what scales logits. A cosine
    between a and b has √(ab). Of a τ per pair it is that of the negatives, which differs from the
    positives': DySTreSS has lowest + (highest − lowest)·sin²(πs/2), here at s = ¼.
    """
    if setting["name"] == "dystress":
        width = setting["highest"] - setting["lowest"]
        return float(setting["lowest"] + width * math.sin(math.pi / 8) ** 2)
    tau = setting.get("temperature")
    if isinstance(tau, dict) and tau["name"] == "cosine":
        return math.sqrt(tau["lowest"] * tau["highest"])
    return measured


def control(setting: Setting, level: float) -> Setting:
    """NT-Xent or InfoNCE, whichever has the negatives of `setting`, with τ fixed at `level`."""
    form = {key: setting[key] for key in ("negatives", "symmetric") if key in setting}
    cross = form.get("negatives") == "cross" or setting["name"] in CROSS_VIEW
    name = "info-nce" if cross else "nt-xent"
    return {"name": name, "temperature": float(f"{level:.3g}"), **form}
