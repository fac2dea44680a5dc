"""Recipes with overrides written as a user of the command line writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from macl import recipes
from macl.experiments import compare
from macl.recipes import Recipe


def load(name: str, texts: Iterable[str] = ()) -> Recipe:
    return recipes.load(name, recipes.parse(texts, recipes.read(name)))


def plan(
    name: str, vary: Iterable[str], seeds: int, texts: Iterable[str], out: Path
) -> list[compare.Cell]:
    """The cells of a comparison, as `macl compare` plans them."""
    values = recipes.read(name)
    varied = recipes.parse_vary(vary, values)
    return compare.plan(name, varied, seeds, recipes.parse(texts, values), out)


def resolve(values: Mapping[str, Any], texts: Iterable[str] = ()) -> Recipe:
    return recipes.resolve(values, recipes.parse(texts, values))
