"""Recipes: typed YAML, one per method × data, every value overridable."""

from macl.recipes.files import ALLOW_IMPORTS, available, dump, load, read, refuse_imports
from macl.recipes.overrides import resolve
from macl.recipes.schema import Recipe

__all__ = [
    "ALLOW_IMPORTS",
    "Recipe",
    "available",
    "dump",
    "load",
    "read",
    "refuse_imports",
    "resolve",
]
