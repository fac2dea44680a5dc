"""Recipes: typed YAML, one per method × data, every value overridable."""

from macl.recipes.files import (
    ALLOW_IMPORTS,
    available,
    dump,
    load,
    plain,
    read,
    refuse_imports,
    require_run,
    resolve_file,
    without_grants,
)
from macl.recipes.overrides import (
    Overrides,
    flatten,
    override,
    resolve,
    resolve_sections,
    text_of,
    texts_of,
)
from macl.recipes.parsing import parse, parse_vary
from macl.recipes.schema import Recipe, Sections

__all__ = [
    "ALLOW_IMPORTS", "Overrides", "Recipe", "Sections", "available", "dump", "flatten", "load",
    "override", "parse", "parse_vary", "plain", "read", "refuse_imports", "require_run", "resolve",
    "resolve_file", "resolve_sections", "text_of", "texts_of", "without_grants",
]  # fmt: skip
