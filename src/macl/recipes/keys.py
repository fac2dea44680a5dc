"""Dotted recipe keys: which models and key_types they lead to."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from macl.core.errors import UserError, nearest
from macl.core.section import Section
from macl.recipes.schema import section_name


def key_types(model: type[BaseModel], key: str) -> list[Any]:
    """The types that the value of a dotted key may have; `UserError` when there is no such key."""
    *parents, last = key.split(".")
    kinds = [model]
    for part in parents:
        kinds = models_at(kinds, part, key)
    models_at(kinds, last, key)  # raises for an unknown key
    found = [kind.model_fields[last] for kind in kinds if last in kind.model_fields]
    return [part for field in found for part in _parts(field.annotation)]


def models_at(models: list[type[BaseModel]], part: str, key: str) -> list[type[BaseModel]]:
    """The models that the field `part` may hold; `UserError` when there is no such field."""
    fields = {n: f for m in models for n, f in m.model_fields.items()}
    if part not in fields:
        now = renamed_key(models, part)
        if now is not None:
            raise UserError(f"{key} is now called {key.removesuffix(part)}{now}.")
        raise UserError(f"unknown key {key!r}.{nearest(part, fields)}")
    return [below for model in models for below in _models_below(model, part)]


def renamed_key(models: Iterable[type[BaseModel]], part: str) -> str | None:
    """What a key of an earlier version is called now; None when it is not such a key."""
    known = (model.renamed.get(part) for model in models if issubclass(model, Section))
    return next(filter(None, known), None)


def _models_below(model: type[BaseModel], part: str) -> list[type[BaseModel]]:
    field = model.model_fields.get(part)
    return [] if field is None else _models_in(field.annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    parts = _parts(annotation)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, with key_types removed."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for member in get_args(annotation) for part in _parts(member)]
    return [annotation]


def walk(
    model: type[BaseModel], loc: Iterable[int | str]
) -> tuple[list[str], list[type[BaseModel]]]:
    """The recipe's keys along a pydantic location, and the models that may stand at its end."""
    keys: list[str] = []
    kinds = [model]
    for part in loc:
        named = [kind for kind in kinds if section_name(kind) == part]
        fields = {name for kind in kinds for name in kind.model_fields}
        if named:  # the tag of a section's kind
            kinds = named
        elif isinstance(part, int) or part in fields:
            keys.append(str(part))
            kinds = [m for kind in kinds for m in _models_below(kind, str(part))]
    return keys, kinds
