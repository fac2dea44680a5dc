"""Recipes with overrides written as a user of the command line writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from macl import recipes
from macl.recipes import Recipe


def load(name: str, texts: Iterable[str] = ()) -> Recipe:
    return recipes.load(name, recipes.parse(texts, recipes.read(name)))


def resolve(values: Mapping[str, Any], texts: Iterable[str] = ()) -> Recipe:
    return recipes.resolve(values, recipes.parse(texts, values))
