"""`key=value` overrides of a recipe, and validation errors that name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from macl import modalities
from macl.core.errors import UserError, nearest
from macl.recipes.schema import Recipe, recipe_model
from macl.recipes.yaml_loader import load_yaml


def resolve(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """Values and `key=value` overrides, checked; a `UserError` names the key that is wrong."""
    plain = _plain_copy(values)
    name = plain.get("modality")
    if not isinstance(name, str):
        raise UserError(f"a recipe names its modality: one of {', '.join(modalities.NAMES)}.")
    model = recipe_model(name)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override!r} is no override; write key=value, such as epochs=20.")
        _assign(plain, model, key.strip(), _parse(text, key))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise UserError(_explain(error, model)) from None


def _plain_copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {str(key): _plain_copy(value) for key, value in values.items()}
    return values


def _parse(text: str, key: str) -> Any:
    try:
        return load_yaml(text)
    except ValueError as error:
        raise UserError(f"the value of {key} cannot be read: {text!r}.") from error


def _assign(values: dict[str, Any], model: type[BaseModel], key: str, value: Any) -> None:
    """Set a dotted key. A name given for a whole section picks another kind of that section:
    `loss=dcl` keeps whatever DCL has in common with the loss that stood there.
    """
    *parents, last = key.split(".")
    here, kinds = values, [model]
    for part in parents:
        kinds = _kinds(kinds, part, key)
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {part} is a plain value and has no keys below it.")
        here = below
        kinds = [kind for kind in kinds if _name_of(kind) == here.get("name")] or kinds
    by_name = {_name_of(kind): kind for kind in _kinds(kinds, last, key)}
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


def _kinds(models: list[type[BaseModel]], part: str, key: str) -> list[type[BaseModel]]:
    """The models that the field `part` may hold; `UserError` when there is no such field."""
    fields = {n: f for m in models for n, f in m.model_fields.items()}
    if part not in fields:
        raise UserError(f"unknown key {key!r}.{nearest(part, fields)}")
    return [below for model in models for below in _models_below(model, part)]


def _models_below(model: type[BaseModel], part: str) -> list[type[BaseModel]]:
    field = model.model_fields.get(part)
    return [] if field is None else _models_in(field.annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return []


def _name_of(model: type[BaseModel]) -> str | None:
    """The value of a `name: Literal["…"]` field that tells a section's kinds apart."""
    field = model.model_fields.get("name")
    names = get_args(field.annotation) if field is not None and field.is_required() else ()
    return names[0] if len(names) == 1 else None


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        *above, last = problem["loc"] or ("recipe",)
        keys, kinds = _walk(model, above)
        if problem["type"] == "extra_forbidden":
            fields = {name for kind in kinds for name in kind.model_fields}
            lines.append(
                f"unknown key {'.'.join([*keys, str(last)])!r}.{nearest(str(last), fields)}"
            )
            continue
        key = ".".join(_walk(model, problem["loc"])[0])
        if problem["type"] == "missing":
            lines.append(f"{key} is missing.")
        else:
            lines.append(f"{key}: {problem['msg']} (got {problem.get('input')!r}).")
    return "the recipe is not right:\n  " + "\n  ".join(dict.fromkeys(lines))


def _walk(
    model: type[BaseModel], loc: Iterable[int | str]
) -> tuple[list[str], list[type[BaseModel]]]:
    """The recipe's keys along a pydantic location, and the models that may stand at its end."""
    keys: list[str] = []
    kinds = [model]
    for part in loc:
        named = [kind for kind in kinds if _name_of(kind) == part]
        fields = {name for kind in kinds for name in kind.model_fields}
        if named:  # the tag of a section's kind
            kinds = named
        elif isinstance(part, int) or part in fields:
            keys.append(str(part))
            kinds = [m for kind in kinds for m in _models_below(kind, str(part))]
    return keys, kinds
