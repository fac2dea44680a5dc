"""Typed overrides of a recipe: dotted keys and plain values, checked against the recipe's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from macl.core import plugins
from macl.core.errors import UserError, nearest
from macl.recipes.explain import explain
from macl.recipes.keys import models_at
from macl.recipes.schema import Recipe, Sections, recipe_model, section_name, sections_model
from macl.recipes.warmup import fit_warmup

Overrides = Mapping[str, Any]
"""Dotted key → value: {"loss": "dcl", "loss.temperature": 0.2}."""

M = TypeVar("M", bound=BaseModel)


def resolve(values: Mapping[str, Any], overrides: Overrides | None = None) -> Recipe:
    """The recipe of `values` with `overrides`; a `UserError` names the key that is wrong."""
    given = overrides or {}
    return fit_warmup(_validated(model_for(values, given), values, given), given)


def resolve_sections(
    modality: str, values: Mapping[str, Any], overrides: Overrides | None = None
) -> Sections:
    """The sections data, views, encoder and evaluation of a modality, without a whole recipe."""
    return _validated(sections_model(modality), values, overrides or {})


def override(recipe: Recipe, overrides: Overrides) -> Recipe:
    """The recipe with some values replaced."""
    return resolve(recipe.model_dump(), overrides) if overrides else recipe


def model_for(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> type[Recipe]:
    """The recipe class for these values: of their modality, with the plug-ins that they name."""
    name = values.get("modality")
    if not isinstance(name, str):
        known = ", ".join(plugins.names("macl.modalities"))
        raise UserError(f"a recipe names its modality: one of {known}.")
    return recipe_model(name, _part_names(values, overrides))


def _part_names(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
    """The names of losses and methods in `values` and `overrides`."""
    found = set()
    for key in ("loss", "method"):
        for given in (values.get(key), overrides.get(key), overrides.get(f"{key}.name")):
            name = given.get("name") if isinstance(given, Mapping) else given
            if isinstance(name, str):
                found.add(name)
    return found


def _validated(model: type[M], values: Mapping[str, Any], overrides: Overrides) -> M:
    plain = _plain_copy(values)
    # What picks the kind of a section comes first: `loss.alpha=1 loss=dcl` is then an error.
    for key in sorted(overrides, key=lambda key: _rank(key, overrides[key])):
        _assign(plain, model, key, _plain_copy(overrides[key]))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise UserError(explain(error, model)) from None


def _rank(key: str, value: Any) -> tuple[bool, int]:
    picks_kind = key.endswith(".name") or isinstance(value, str | Mapping)
    return not picks_kind, key.count(".")


def _plain_copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {str(key): _plain_copy(value) for key, value in values.items()}
    return values


def _assign(values: dict[str, Any], model: type[BaseModel], key: str, value: Any) -> None:
    """Set a dotted key. A name given for a whole section picks another kind of that section:
    `loss=dcl` keeps whatever DCL has in common with the loss that stood there.
    """
    *parents, last = key.split(".")
    here, kinds = values, [model]
    for part in parents:
        kinds = models_at(kinds, part, key)
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {part} is a plain value and has no keys below it.")
        here = below
        kinds = [kind for kind in kinds if section_name(kind) == here.get("name")] or kinds
    by_name = {section_name(kind): kind for kind in models_at(kinds, last, key)}
    by_name.pop(None, None)
    if isinstance(value, str) and value in by_name:
        before = here.get(last)
        kept = before if isinstance(before, dict) else {}
        fields = by_name[value].model_fields
        here[last] = {k: v for k, v in kept.items() if k in fields} | {"name": value}
    elif isinstance(value, str) and by_name and isinstance(here.get(last), dict):
        raise UserError(f"no {key} is called {value!r}.{nearest(value, map(str, by_name))}")
    else:
        here[last] = value
