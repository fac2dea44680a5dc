"""Recipes: typed YAML, one per method × data, every value overridable."""

from macl.recipes.files import ALLOW_IMPORTS, available, dump, load, read, refuse_imports
from macl.recipes.overrides import Overrides, override, resolve, resolve_sections
from macl.recipes.parsing import parse
from macl.recipes.schema import Recipe, Sections

__all__ = [
    "ALLOW_IMPORTS",
    "Overrides",
    "Recipe",
    "Sections",
    "available",
    "dump",
    "load",
    "override",
    "parse",
    "read",
    "refuse_imports",
    "resolve",
    "resolve_sections",
]
