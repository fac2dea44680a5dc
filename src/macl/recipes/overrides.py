"""Typed overrides of a recipe: dotted keys and plain values, checked against the recipe's model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from macl.core import plugins
from macl.core.errors import UserError, nearest
from macl.core.section import Section
from macl.recipes.explain import explain
from macl.recipes.keys import models_at
from macl.recipes.schema import Recipe, Sections, recipe_model, section_name, sections_model

Overrides = Mapping[str, Any]
"""Dotted key → value: {"loss": "dcl", "loss.temperature": 0.2}."""

M = TypeVar("M", bound=BaseModel)


def resolve(values: Mapping[str, Any], *layers: Overrides | None) -> Recipe:
    """The recipe of `values` with overrides; a `UserError` names the key that is wrong.

    Layers are applied in order. A layer that names another loss keeps the keys which that loss
    shares with what the layers before it have set.
    """
    given = [layer for layer in layers if layer]
    model = model_for(values, *given)
    recipe = _validated(model, values, given)
    # The class depends on the plug-ins in use. Those that were replaced are left out, so that equal
    # recipes are of one class.
    final = recipe_model(recipe.modality, {p.name for p in (recipe.loss, recipe.method) if p})
    return recipe if final is model else final.model_validate(recipe.model_dump())


def resolve_sections(
    modality: str, values: Mapping[str, Any], overrides: Overrides | None = None
) -> Sections:
    """The sections data, views, encoder and evaluation of a modality, without a whole recipe."""
    return _validated(sections_model(modality), values, [overrides or {}])


def override(recipe: Recipe, overrides: Overrides) -> Recipe:
    """The recipe with some values replaced."""
    return resolve(recipe.model_dump(), overrides) if overrides else recipe


def text_of(value: Any) -> str:
    """A value as it is written on the command line, for tables and messages."""
    if isinstance(value, str | Path):
        return str(value)
    # PyYAML ends the document of a plain scalar with a second line: "0.5\n...\n".
    text = yaml.safe_dump(_plain_copy(value), default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def texts_of(overrides: Overrides) -> list[str]:
    """Overrides as they are written on the command line, for tables and messages."""
    return [f"{key}={text_of(value)}" for key, value in overrides.items()]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key: {"loss": {"name": "dcl"}} → {"loss.name": …}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def model_for(values: Mapping[str, Any], *layers: Overrides) -> type[Recipe]:
    """The recipe class for these values: of their modality, with the plug-ins that they name."""
    name = values.get("modality")
    if not isinstance(name, str):
        known = ", ".join(plugins.names("macl.modalities"))
        raise UserError(f"a recipe names its modality: one of {known}.")
    return recipe_model(name, _part_names(values, *layers))


def _part_names(*layers: Mapping[str, Any]) -> set[str]:
    """The names of losses and methods in recipe values and overrides."""
    found = set()
    for layer in layers:
        for key in ("loss", "method"):
            for given in (layer.get(key), layer.get(f"{key}.name")):
                name = given.get("name") if isinstance(given, Mapping) else given
                if isinstance(name, str):
                    found.add(name)
    return found


def _validated(model: type[M], values: Mapping[str, Any], layers: Sequence[Overrides]) -> M:
    plain = _plain_copy(values)
    for layer in layers:
        # Names of section kinds come first, in any order: `loss.alpha=1 loss=dcl` is an error.
        for key in sorted(layer, key=partial(_rank, layer)):
            _assign(plain, model, key, _plain_copy(layer[key]))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise UserError(explain(error, model)) from None


def _rank(layer: Overrides, key: str) -> tuple[bool, int, bool]:
    value = layer[key]
    picks_kind = key.endswith(".name") or isinstance(value, str | Mapping)
    return not picks_kind, key.count("."), not key.endswith(".name")


def _plain_copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {str(key): _plain_copy(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return list(values)
    # A path may be the value of a key that also takes names: "package:NAME", a folder.
    return str(values) if isinstance(values, Path) else values


def _assign(values: dict[str, Any], model: type[BaseModel], key: str, value: Any) -> None:
    """Set a dotted key. A name given for a whole section picks another kind of that section:
    `loss=dcl` keeps the keys that DCL shares with the former loss.
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
        if last == "name" and parents and here.get("name") != value:
            _drop_keys_of_other_name(here, kinds, value)
        here[last] = value


def _drop_keys_of_other_name(
    section: dict[str, Any], models: Sequence[type[BaseModel]], name: Any
) -> None:
    """Remove the values of a section that do not apply to what it is called now."""
    for model in models:
        if isinstance(name, str) and issubclass(model, Section):
            kept = model.keep_for_name(name, dict(section))
            for key in set(section) - set(kept):
                del section[key]
