"""Recipe files: shipped ones by name, YAML files by path, and the check of what they import."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from macl.core import plugins
from macl.core.errors import SkippedInputWarning, UserError, nearest
from macl.core.section import Section
from macl.recipes.keys import submodels
from macl.recipes.overrides import Overrides, flatten, plain_copy, resolve
from macl.recipes.schema import Recipe, sections_model
from macl.recipes.upgrade import STORED, upgraded

ALLOW_IMPORTS = "MACL_ALLOW_IMPORTS"
"""Environment variable: 1 lets recipes from files import code, fetch and write what they name."""


class _Tree(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("write values out instead of referring to them with *")
        return super().compose_node(parent, index)


@lru_cache(maxsize=256)
def load_yaml(text: str) -> Any:
    """The value of a YAML document, not to be changed; `ValueError` where it cannot be read."""
    try:
        return yaml.load(text, _Tree)
    # Besides its own errors PyYAML lets those of int(), date() and the like through.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def available() -> dict[str, Path]:
    """The recipes that come with the package and with plug-ins, by name; our own names win."""
    own = Path(str(resources.files("macl.recipes"))) / "yaml"
    shipped: dict[str, Path] = {}
    for folder in (own, *plugins.recipe_folders()):
        for path in sorted(folder.glob("*.yaml")):
            shipped.setdefault(path.stem, path)
    return shipped


def read(name: str) -> dict[str, Any]:
    """The values of a recipe by its name, or of a YAML file by its path, with today's keys."""
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
    if name not in shipped and os.environ.get(ALLOW_IMPORTS) != "1":
        given, values = flatten(values), without_grants(values)
        kept = flatten(values)
        ignored = sorted(key for key, value in given.items() if key not in kept and value)
        if ignored and path.name != STORED:
            warnings.warn(
                f"{path}: {', '.join(ignored)} is ignored. A file can neither permit downloads nor "
                "choose where to write: set it in the call.",
                SkippedInputWarning,
                stacklevel=2,
            )
    return plain_copy({"name": path.stem, **values})


def without_grants(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe without those that only the user may set: `Section.user_only`."""
    try:
        model = sections_model(values.get("modality", ""))
    except (UserError, TypeError):  # reported where the recipe is resolved
        return dict(values)
    return _dropped(values, [model])


def _dropped(values: Mapping[str, Any], kinds: Sequence[type[BaseModel]]) -> dict[str, Any]:
    dropped = {key for kind in kinds if issubclass(kind, Section) for key in kind.user_only}
    return {
        key: _dropped(value, submodels(kinds, key)) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if key not in dropped
    }


def require_run(folder: Path) -> None:
    """`UserError` where a folder is not a run."""
    if not (folder / STORED).is_file():
        raise UserError(
            f"{folder} is not a run: it has no {STORED}. "
            f"`macl.train('RECIPE', out={str(folder)!r})` makes one."
        )


def load(name: str, *layers: Overrides | None) -> Recipe:
    """A recipe by name or path, with overrides as in `resolve`; see `refuse_imports`."""
    recipe = resolve_file(name, *layers)
    refuse_imports(recipe, name, [key for layer in layers for key in layer or ()])
    return recipe


def resolve_file(name: str, *layers: Overrides | None) -> Recipe:
    """As `resolve`, of a recipe by name or path; an error that the file causes names the file."""
    values = read(name)
    try:
        return resolve(values, *layers)
    except UserError as error:
        if name not in available():
            try:
                resolve(values)
            except UserError as own:
                if str(own) == str(error):
                    raise UserError(f"{name}: {error}") from error
        raise


def refuse_imports(recipe: Recipe, origin: str | Path, allowed: Iterable[str] = ()) -> None:
    """`UserError` if a recipe from the file `origin` imports code that the user did not allow.

    A section among the keys `allowed` that the user set, or its `allow_import`, is trusted.
    """
    if os.environ.get(ALLOW_IMPORTS) == "1":
        return
    trusted = {key.removesuffix(".allow_import") for key in allowed}
    for key, name in _imports(recipe.encoder, "encoder"):
        if key not in trusted:
            raise UserError(
                f"{origin} would import and run Python code ({key}.name={name}). If you trust it, "
                f"allow it with `allow_imports=True` or {ALLOW_IMPORTS}=1 in the environment."
            )


def _imports(section: Section, key: str) -> Iterator[tuple[str, str]]:
    """(key, name) of every section, itself or below it, that may import code."""
    if getattr(section, "allow_import", False):
        yield key, getattr(section, "name", "")
    for field in type(section).model_fields:
        if isinstance(below := getattr(section, field), Section):
            yield from _imports(below, f"{key}.{field}")


def plain(recipe: Recipe, *, paths: bool = True, **chosen: Any) -> dict[str, Any]:
    """The plain values of a recipe; without `paths`, only the last part of each path.

    `chosen` goes to `model_dump`: `exclude_none=True`.
    """
    return plain_copy(recipe.model_dump(**chosen), str if paths else lambda path: path.name)


def dump(recipe: Recipe, **chosen: Any) -> str:
    """The resolved recipe as YAML, from which `resolve` makes it again; arguments as `plain`."""
    return yaml.safe_dump(plain(recipe, **chosen), sort_keys=False, allow_unicode=True)
