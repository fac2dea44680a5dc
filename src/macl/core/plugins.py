"""Built-in parts and those that other installed packages add by entry points.

The groups are `macl.modalities`, `macl.methods`, `macl.losses` and `macl.recipes`. Listing names
reads package metadata alone; an object is imported when it is first asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from macl.core.errors import SkippedInputWarning, UserError, nearest

Group = Literal["macl.modalities", "macl.methods", "macl.losses", "macl.recipes"]

MODALITIES = {
    "images": None,
    "text": "text",
    "graphs": "graphs",
    "molecules": "molecules",
    "image-text": "text",
}
"""The modalities of this package → the extra with the packages that they need."""


def names(group: Group) -> list[str]:
    """The names in a group: built-in ones first, then those of other packages."""
    built_in = list(MODALITIES) if group == "macl.modalities" else []
    return [*built_in, *sorted(_entries(group).keys() - set(built_in))]


def load(group: Group, name: str) -> Any:
    """The object called `name`; `UserError` when there is none or its package is broken."""
    if group == "macl.modalities" and name in MODALITIES:
        try:
            return load_object(f"macl.modalities.{name.replace('-', '_')}.modality:MODALITY")
        except ModuleNotFoundError as error:
            extra = MODALITIES[name]
            if extra is None or (error.name or "").startswith("macl"):
                raise
            raise UserError(
                f"{name} needs {error.name}, which is not installed: pip install 'macl[{extra}]'."
            ) from error
    entry = _entries(group).get(name)
    if entry is None:
        kind = "modality" if group == "macl.modalities" else "plug-in"
        raise UserError(f"no {kind} is called {name!r}.{nearest(name, names(group))}")
    try:
        return entry.load()
    except Exception as error:
        raise UserError(f"{_origin(entry)} cannot be loaded: {error!r}") from error


def sections(modality: str) -> dict[str, Any]:
    """The section types of a modality by key; of built-in ones without loading torch."""
    if modality in MODALITIES:
        package = modality.replace("-", "_")
        return dict(load_object(f"macl.modalities.{package}.sections:SECTIONS"))
    return dict(load("macl.modalities", modality).sections)


@functools.cache
def recipe_folders() -> list[Path]:
    """The folders of recipes that other packages add, without importing the packages.

    An entry point is "package.folder". One that is not there is left out with a warning.
    """
    folders = []
    for entry in _entries("macl.recipes").values():
        package, *below = entry.module.split(".")
        spec = importlib.util.find_spec(package)
        places = (spec and spec.submodule_search_locations) or ()
        found = [Path(root, *below) for root in places if Path(root, *below).is_dir()]
        if not found:
            message = f"{_origin(entry)} is left out: there is no such folder"
            warnings.warn(message, SkippedInputWarning, stacklevel=3)
        folders += found[:1]
    return folders


def load_object(path: str) -> Any:
    """The object at "package.module:name"; errors of importing it are not translated."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def load_factory(name: str, allowed: bool) -> Any:
    """The user's own encoder.name, "package.module:factory"; `UserError` without permission."""
    if not allowed:
        raise UserError(
            f"encoder {name} would import and run Python code; if you trust it, set"
            " encoder.allow_import=true."
        )
    try:
        return load_object(name)
    except (ImportError, AttributeError, ValueError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        remedy = "; is its folder on PYTHONPATH or installed?" if missing else "."
        raise UserError(f"encoder {name} cannot be imported: {error}{remedy}") from error


@functools.cache
def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _origin(entry: EntryPoint) -> str:
    package = f" of the package {entry.dist.name}" if entry.dist is not None else ""
    return f"the plug-in {entry.name!r}{package} ({entry.value})"
