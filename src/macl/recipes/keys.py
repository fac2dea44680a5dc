"""Dotted recipe keys: the models and types that they lead to, and readable validation errors."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from macl.core.errors import UserError, nearest
from macl.recipes.schema import section_name
from macl.recipes.upgrade import RENAMED_KEYS


def key_types(model: type[BaseModel], key: str) -> list[Any]:
    """The types that the value of a dotted key may have; `UserError` when there is no such key."""
    *parents, last = key.split(".")
    kinds = [model]
    for part in parents:
        kinds = models_at(kinds, part, key)
    models_at(kinds, last, key)  # raises for an unknown key
    return _types(kinds, last)


def models_at(models: list[type[BaseModel]], part: str, key: str) -> list[type[BaseModel]]:
    """The models that the field `part` may hold; `UserError` when there is no such field."""
    if not any(part in model.model_fields for model in models):
        raise UserError(unknown_key(key, part, models))
    return submodels(models, part)


def unknown_key(key: str, part: str, models: Iterable[type[BaseModel]]) -> str:
    """What a `key` is now called, or the key like it; its `part` is not a field of `models`."""
    renamed = {old: new for m in models for old, new in getattr(m, "renamed", {}).items()}
    now = ".".join(renamed.get(each, each) for each in key.split("."))
    if part in renamed or key in RENAMED_KEYS:
        return f"{key} is now called {RENAMED_KEYS.get(key, now)}."
    fields = {name for model in models for name in model.model_fields}
    return f"unknown key {key!r}.{nearest(part, fields)}"


def submodels(models: Iterable[type[BaseModel]], part: str) -> list[type[BaseModel]]:
    """The models that the field `part` may hold; none if there is no such field."""
    kinds = _types(models, part)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _types(models: Iterable[type[BaseModel]], part: str) -> list[Any]:
    fields = [model.model_fields[part] for model in models if part in model.model_fields]
    return [kind for field in fields for kind in _parts(field.annotation)]


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for member in get_args(annotation) for part in _parts(member)]
    return [annotation]


def walk(model: type[BaseModel], loc: Iterable[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """The recipe's dotted key at a pydantic location, and the models there."""
    keys: list[str] = []
    kinds = [model]
    for part in loc:
        named = [kind for kind in kinds if section_name(kind) == part]
        fields = {name for kind in kinds for name in kind.model_fields}
        if named:  # the tag of a section's kind
            kinds = named
        elif isinstance(part, int) or part in fields:
            keys.append(str(part))
            kinds = submodels(kinds, str(part))
    return ".".join(keys), kinds


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for each problem, with the key as a user writes it."""
    lines = []
    for problem in error.errors():
        *above, last = problem["loc"] or ("recipe",)
        if problem["type"] == "extra_forbidden":
            key, models = walk(model, above)
            lines.append(unknown_key(f"{key}.{last}".removeprefix("."), str(last), models))
            continue
        key, _ = walk(model, problem["loc"])
        if problem["type"] == "missing":
            lines.append(f"{key} is missing.")
        elif problem["type"] == "value_error":  # a sentence of ours, which says what was given
            lines.append(f"{key}: {problem['ctx']['error']}.")
        else:
            lines.append(f"{key}: {problem['msg']} (got {problem.get('input')!r}).")
    return "the recipe is not valid:\n  " + "\n  ".join(dict.fromkeys(lines))
