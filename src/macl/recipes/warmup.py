"""A warm-up that fits into the training: a recipe's own is shortened, a user's is rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from macl.core.errors import UserError
from macl.recipes.schema import Recipe

SHARE = 0.1
"""Share of the training that a shortened warm-up takes."""


def fit_warmup(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe with a warm-up shorter than its training.

    Raises:
        UserError: `overrides` ask for a warm-up that leaves nothing of the training.
    """
    warmup, epochs = recipe.schedule.warmup_epochs, recipe.epochs
    if not 0 < epochs <= warmup:
        return recipe
    section = overrides.get("schedule")
    if "schedule.warmup_epochs" in overrides or (
        isinstance(section, Mapping) and "warmup_epochs" in section
    ):
        raise UserError(
            f"schedule.warmup_epochs={warmup:g}: a warm-up of {warmup:g} epochs leaves nothing of "
            f"the {epochs} epochs of training. Lower it, or raise epochs."
        )
    shorter = recipe.schedule.model_copy(update={"warmup_epochs": SHARE * epochs})
    return recipe.model_copy(update={"schedule": shorter})
