"""Recipes that earlier versions stored in run folders, in the keys and values of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STORED = "recipe.yaml"
"""The file in which a run keeps its resolved recipe."""

RENAMED_KEYS = {
    "accumulate": "accumulate_grad_batches",
    "clip": "gradient_clip",
    "method.splits": "method.bn_splits",
    "evaluation.tasks": "evaluation.protocols",
    "needs": "requirements",
    "optimizer.scaling": "optimizer.lr_scaling",
    "evaluation.linear.scaling": "evaluation.linear.lr_scaling",
    "schedule.final": "schedule.final_lr_factor",
    "data.unlabelled": "data.unlabeled",
    "views.grey_p": "views.gray_p",
    "views.image.grey_p": "views.image.gray_p",
    "loss.lowest": "loss.tau_min",
    "loss.highest": "loss.tau_max",
    "loss.form": "loss.variant",
    "loss.temperature.lowest": "loss.temperature.tau_min",
    "loss.temperature.highest": "loss.temperature.tau_max",
}
"""Keys of earlier versions → what they are called now: read in stored runs, refused in recipes."""

REMOVED_KEYS = {
    "evaluation.aggregation",
    "evaluation.detection.frozen_stages",
    "evaluation.detection.from_scratch",
}
"""Keys of earlier versions that are gone: passed over in stored runs."""

RENAMED_VALUES = {"evaluation.linear.schedule": {"none": "constant"}}
"""Values of earlier versions, by key → what they are called now."""


def upgraded(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a stored recipe, which macl itself wrote, with today's keys."""
    current: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in REMOVED_KEYS:
            continue
        now = RENAMED_KEYS[key].rpartition(".")[2] if key in RENAMED_KEYS else name
        if isinstance(value, Mapping):
            value = upgraded(value, f"{key}.")
        elif isinstance(value, str):
            value = RENAMED_VALUES.get(key, {}).get(value, value)
        current[now] = value
    return current
