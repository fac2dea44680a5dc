"""The Python blocks of every page run in order, or say why not."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from docs_pages import PAGES, ROOT, SHORT, blocks, fill, read

import macl
from macl import recipes

CODE = [page for page in PAGES if any(block.language == "python" for block in blocks(read(page)))]
EXTRAS = {
    "pytorch_metric_learning": "pytorch_metric_learning",
    '"topics"': "transformers",
    "networkx": "torch_geometric",
}
"""Packages that a page needs by what its code names."""


def test_pages_with_code_are_found() -> None:
    assert {"docs/losses.md", "docs/start.md", "docs/methods/macl.md"} <= set(CODE)


@pytest.mark.docs
@pytest.mark.parametrize("page", CODE)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = [block for block in blocks(read(page)) if block.language == "python"]
    code = "".join(block.code for block in todo if not block.reason)
    for name, package in EXTRAS.items():
        if name in code and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if "macl." in code:
        fill(tmp_path)
        monkeypatch.setattr(macl, "train", short_train, raising=False)
        monkeypatch.setattr(macl, "compare", short_compare, raising=False)
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # where dataclasses look up annotations
    monkeypatch.setitem(sys.modules, "page", module)
    namespace = module.__dict__
    with torch.random.fork_rng():
        for block in todo:
            source = "\n" * (block.line - 1) + block.code
            if block.reason:
                ast.parse(source, page)
            else:
                exec(compile(source, str(ROOT / page), "exec"), namespace)


def short(recipe: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The overrides that make a recipe short, less those that the page sets."""
    texts = SHORT.get(recipe, "").split() if isinstance(recipe, str) else []
    values = recipes.parse(texts, recipes.read(recipe)) if texts else {}
    own = {
        **{key: value for key, value in given.items() if key in values},
        **(given.get("overrides") or {}),
    }
    return {key: value for key, value in values.items() if key not in own}


def short_train(recipe: Any, **options: Any) -> Any:
    """`macl.train` with a short training."""
    from macl.api import train

    overrides = {**short(recipe, options), **(options.pop("overrides", None) or {})}
    return train(recipe, overrides=overrides, **options)


def short_compare(recipe: Any, vary: Any = None, **options: Any) -> Any:
    """`macl.compare` with short trainings."""
    from macl.api import compare

    overrides = {**short(recipe, options), **(options.pop("overrides", None) or {})}
    return compare(recipe, vary, overrides=overrides, **options)


@pytest.mark.parametrize("page", PAGES)
def test_other_blocks_are_valid(page: str) -> None:
    """YAML, TOML and both sides of a diff parse; a language that nothing checks is not used."""
    for block in blocks(read(page)):
        if block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "diff":
            for sign in "-+":
                lines = (line for line in block.code.splitlines() if line.startswith(sign))
                ast.parse("\n".join(line.removeprefix(f"{sign} ") for line in lines))
        else:
            assert block.language in ("", "bash", "python", "text", "bibtex"), block.language
