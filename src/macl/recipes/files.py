"""Recipe files: shipped ones by name, YAML files by path, and the check of what they import."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from macl.core import plugins
from macl.core.errors import UserError, nearest
from macl.core.section import Section
from macl.recipes.overrides import Overrides, resolve
from macl.recipes.schema import Recipe
from macl.recipes.upgrade import STORED, upgraded
from macl.recipes.yaml_loader import load_yaml

ALLOW_IMPORTS = "MACL_ALLOW_IMPORTS"
"""Environment variable: 1 lets recipes from files import the code that they name."""


def available() -> dict[str, Path]:
    """The recipes that come with the package and with plug-ins, by name; our own names win."""
    own = Path(str(resources.files("macl.recipes"))) / "yaml"
    folders = [own, *plugins.folders("macl.recipes").values()]
    files = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    found: dict[str, Path] = {}
    for path in files:
        found.setdefault(path.stem, path)
    return found


def read(name: str) -> dict[str, Any]:
    """The values of a recipe by its name, or of a YAML file by its path.

    The recipe of a run that an earlier version made is read with today's keys.
    """
    shipped, path = available(), Path(name)
    if name in shipped:
        path = shipped[name]
    elif not (path.suffix in (".yaml", ".yml") and path.is_file()):
        raise UserError(f"no recipe is called {name!r}.{nearest(name, shipped)}")
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, as the shipped recipes do.")
    if path.name == STORED:
        values = upgraded(values)
    return {"name": path.stem, **values}


def load(name: str, *layers: Overrides | None) -> Recipe:
    """A recipe by name or path, with overrides as in `resolve`.

    A file cannot allow itself to import code; see `refuse_imports`.
    """
    recipe = resolve_file(name, *layers)
    refuse_imports(recipe, name, [key for layer in layers for key in layer or ()])
    return recipe


def resolve_file(name: str, *layers: Overrides | None) -> Recipe:
    """As `resolve`, of a recipe by name or path; an error that the file causes names the file."""
    values = read(name)
    try:
        return resolve(values, *layers)
    except UserError as error:
        if name not in available() and str(error) == _mistake(values):
            raise UserError(f"{name}: {error}") from error
        raise


def _mistake(values: Mapping[str, Any]) -> str:
    """What is wrong with the values of a file by themselves; empty: nothing."""
    try:
        resolve(values)
    except UserError as error:
        return str(error)
    return ""


def refuse_imports(recipe: Recipe, origin: str | Path, allowed: Iterable[str] = ()) -> None:
    """`UserError` if a recipe from a file imports code and the user did not allow it.

    A file may come from anywhere, so only the command line or the environment can allow it.

    Args:
        recipe: as read from the file.
        origin: the file, for the message.
        allowed: keys that the user set: a section among them, or its `allow_import`, is trusted.
    """
    if os.environ.get(ALLOW_IMPORTS) == "1":
        return
    trusted = {key.removesuffix(".allow_import") for key in allowed}
    for key, name in _imports(recipe.encoder, "encoder"):
        if key not in trusted:
            raise UserError(
                f"{origin} would import and run Python code ({key}.name={name}). If you trust it, "
                f"use `macl --allow-imports …` or set {ALLOW_IMPORTS}=1."
            )


def _imports(section: Section, key: str) -> Iterator[tuple[str, str]]:
    """(key, name) of every section, itself or below it, that may import code."""
    if getattr(section, "allow_import", False):
        yield key, getattr(section, "name", "")
    for field in type(section).model_fields:
        if isinstance(below := getattr(section, field), Section):
            yield from _imports(below, f"{key}.{field}")


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `resolve(yaml.safe_load(...))` gives the same recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
