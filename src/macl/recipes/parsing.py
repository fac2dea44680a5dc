"""`key=value` texts of a command line, parsed into the typed values that all below it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import yaml

from macl.core.errors import UserError
from macl.recipes.files import load_yaml
from macl.recipes.keys import key_types
from macl.recipes.overrides import Overrides, model_for
from macl.recipes.schema import Sections

NONE = type(None)


def parse(
    texts: Iterable[str], values: Mapping[str, Any], *, default_section: str | None = None
) -> Overrides:
    """Overrides of the recipe `values`, each parsed by the type of its key.

    The text of a path or a string is taken as it is: `data.path=my #1 set` and `data.path=null`
    name files. Every other value is YAML. A later text replaces an earlier one of the same key.

    Args:
        values: the recipe, or at least its modality, which decides the types.
        default_section: keys that name none of the sections data, views, encoder and evaluation
            are keys of this one: with "evaluation", `k=5` is `evaluation.k=5`.
    """
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{text!r} is not an override; write key=value, such as epochs=20.")
        section, dot, _ = (key := key.strip()).partition(".")
        complete = default_section is None or (dot and section in Sections.model_fields)
        pairs[key if complete else f"{default_section}.{key}"] = value
    model = model_for(values, pairs)
    return {key: _typed(text, key_types(model, key), key) for key, text in pairs.items()}


def parse_vary(texts: Iterable[str], values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each `key=a,b,c`, typed as `parse` does: {"loss": ["nt-xent", "dcl"]}."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, _, listed = text.partition("=")
        if not listed.strip():
            raise UserError(f"`vary=` {text!r}: write key=a,b,c such as loss=nt-xent,dcl,macl.")
        if (key := key.strip()) in pairs:
            raise UserError(f"`vary=` {key} is given twice; write its values together: a,b,c.")
        pairs[key] = listed
    # The names of losses and methods among the values decide which plug-ins are loaded.
    named = [{key: part.strip()} for key, text in pairs.items() for part in text.split(",")]
    model = model_for(values, *named)
    types = {key: key_types(model, key) for key in pairs}
    return {
        key: [_typed(item, types[key], key) for item in _items(key, text, types[key])]
        for key, text in pairs.items()
    }


def _items(key: str, text: str, types: list[Any]) -> list[str]:
    """The texts of `a,b,[c,d]`; commas within brackets separate nothing where values are YAML."""
    if _is_text(types):
        return [item.strip() for item in text.split(",")]
    listed = f"[{text}]"
    try:
        nodes = yaml.compose(listed, yaml.SafeLoader).value
    except yaml.YAMLError as error:
        raise UserError(f"`vary=` {key}={text}: the values cannot be read.") from error
    return [listed[node.start_mark.index : node.end_mark.index].strip() for node in nodes]


def _is_text(types: list[Any]) -> bool:
    """Whether a value is a path or a string and nothing else, so that its text is the value."""
    plain = all(kind in (str, NONE) or get_origin(kind) is Literal for kind in types)
    return Path in types or (str in types and plain)


def _typed(text: str, types: list[Any], key: str) -> Any:
    if Path in types:
        return Path(text) if text or NONE not in types else None
    if _is_text(types):
        return None if NONE in types and text in ("", "null") else text
    try:
        value = load_yaml(text)
    except ValueError as error:
        raise UserError(f"the value of {key} cannot be read: {text!r}.") from error
    # "1e-3" is a string in YAML 1.1 and a number elsewhere; pydantic converts it.
    return text if str in types and not isinstance(value, list | dict) else value
