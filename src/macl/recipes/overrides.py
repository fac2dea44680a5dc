"""Typed overrides of a recipe: dotted keys and plain values, checked against the recipe's model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from macl.core import plugins
from macl.core.errors import SkippedInputWarning, UserError, nearest
from macl.core.remote import on_network
from macl.core.section import Section
from macl.recipes.keys import explain, models_at
from macl.recipes.schema import Recipe, Sections, recipe_model, section_name, sections_model

Overrides = Mapping[str, Any]
"""Dotted key → value: {"loss": "dcl", "loss.temperature": 0.2}."""

M = TypeVar("M", bound=BaseModel)


def resolve(values: Mapping[str, Any], *layers: Overrides | None) -> Recipe:
    """The recipe of `values` with layers of overrides; a `UserError` names the key that is wrong.

    A layer that names another loss keeps the keys that it shares with the former one.
    """
    given = [layer for layer in layers if layer]
    model = model_for(values, *given)
    recipe = _validated(model, values, given)
    # Without the plug-ins that were replaced, so that equal recipes are of one class.
    final = recipe_model(recipe.modality, {p.name for p in (recipe.loss, recipe.method) if p})
    if final is not model:
        recipe = final.model_validate(recipe.model_dump())
    return _fit_warmup(recipe, given)


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
    text = yaml.safe_dump(plain_copy(value), default_flow_style=True, width=math.inf)
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
    keys = ("loss", "loss.name", "method", "method.name")
    given = [layer.get(key) for layer in (values, *layers) for key in keys]
    names = [value.get("name") if isinstance(value, Mapping) else value for value in given]
    return recipe_model(name, {name for name in names if isinstance(name, str)})


def _validated(model: type[M], values: Mapping[str, Any], layers: Sequence[Overrides]) -> M:
    plain = plain_copy(values)
    for layer in layers:
        # Names of section kinds come first, in any order: `loss.alpha=1 loss=dcl` is an error.
        for key, value in sorted(layer.items(), key=_rank):
            _assign(plain, model, key, plain_copy(value))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise UserError(explain(error, model)) from None


def _rank(item: tuple[str, Any]) -> tuple[bool, int, bool]:
    key, value = item
    picks_kind = key.endswith(".name") or isinstance(value, str | Mapping)
    return not picks_kind, key.count("."), not key.endswith(".name")


def plain_copy(values: Any, of_path: Callable[[Path], str] = str) -> Any:
    """A copy of nested mappings and sequences, with texts in place of paths."""
    if isinstance(values, Mapping):
        return {str(key): plain_copy(value, of_path) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain_copy(value, of_path) for value in values]
    return of_path(values) if isinstance(values, Path) else values


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
    by_name = {section_name(kind) or "": kind for kind in models_at(kinds, last, key)}
    by_name.pop("", None)
    before = here.get(last)
    if isinstance(value, str) and value in by_name:
        fields = by_name[value].model_fields
        kept = before if isinstance(before, dict) else {}
        here[last] = {k: v for k, v in kept.items() if k in fields} | {"name": value}
    elif isinstance(value, str) and by_name and isinstance(before, dict):
        raise UserError(f"no {key} is called {value!r}.{nearest(value, by_name)}")
    else:
        if last == "name" and parents and isinstance(value, str) and here.get("name") != value:
            for kind in kinds:  # values that do not apply to what the section is called now
                if issubclass(kind, Section):
                    for dropped in set(here) - set(kind.keep_for_name(value, dict(here))):
                        del here[dropped]
        here[last] = value
        # Who names a URL in the call permits that it is read; a file permits nothing.
        grants = any("download" in kind.model_fields for kind in kinds)
        if grants and last.endswith("path") and isinstance(value, str) and on_network(Path(value)):
            here["download"] = True


def _fit_warmup(recipe: Recipe, layers: Iterable[Overrides]) -> Recipe:
    """The recipe with a warm-up shorter than its training; `UserError` where a layer sets it."""
    warmup, epochs = recipe.schedule.warmup_epochs, recipe.epochs
    if not 0 < epochs <= warmup or recipe.steps is not None:
        return recipe
    if any("schedule.warmup_epochs" in flatten(layer) for layer in layers):
        raise UserError(
            f"schedule.warmup_epochs={warmup:g}: a warm-up of {warmup:g} epochs leaves nothing of "
            f"the {recipe.length} of training. Lower it, or raise epochs."
        )
    shorter = 0.1 * epochs
    warnings.warn(
        f"schedule.warmup_epochs={warmup:g} does not fit into {recipe.length} of training: it is "
        f"shortened to {shorter:g} epochs.",
        SkippedInputWarning,
        stacklevel=4,
    )
    schedule = recipe.schedule.model_copy(update={"warmup_epochs": shorter})
    return recipe.model_copy(update={"schedule": schedule})
