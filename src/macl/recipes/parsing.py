"""`key=value` texts, as a command line gives them, parsed into typed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import BaseModel

from macl.core.errors import UserError
from macl.recipes.keys import key_types
from macl.recipes.overrides import Overrides, model_for
from macl.recipes.yaml_loader import load_yaml

NONE = type(None)


def parse(texts: Iterable[str], values: Mapping[str, Any]) -> Overrides:
    """Overrides of the recipe `values`, each parsed by the type of its key.

    The text of a path or a string is taken as it is: `data.path=my #1 set` and `data.path=null`
    name files. Every other value is YAML. A later text replaces an earlier one of the same key.
    """
    pairs = dict(map(split, texts))
    model = model_for(values, pairs)
    return {key: _typed(text, key_types(model, key), key) for key, text in pairs.items()}


def parse_for(texts: Iterable[str], model: type[BaseModel]) -> Overrides:
    """As `parse`, for the keys of `model`."""
    return {key: _typed(text, key_types(model, key), key) for key, text in map(split, texts)}


def split(text: str) -> tuple[str, str]:
    """(key, text of its value) of one `key=value`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} is not an override; write key=value, such as epochs=20.")
    return key.strip(), value


def _typed(text: str, kinds: list[Any], key: str) -> Any:
    if Path in kinds:
        return Path(text) if text or NONE not in kinds else None
    plain = all(kind in (str, NONE) or get_origin(kind) is Literal for kind in kinds)
    if str in kinds and plain:
        return None if NONE in kinds and text in ("", "null") else text
    try:
        value = load_yaml(text)
    except ValueError as error:
        raise UserError(f"the value of {key} cannot be read: {text!r}.") from error
    # "1e-3" is a string in YAML and a number to everybody else; pydantic converts it.
    return text if str in kinds and not isinstance(value, list | dict) else value
