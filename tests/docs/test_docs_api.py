"""The API pages name everything public, and every name is in an example that runs."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from docs_pages import DOCS, blocks

MODULES = (
    "macl",
    "macl.losses",
    "macl.losses.ops",
    "macl.methods",
    "macl.diagnosis",
    "macl.api",
    "macl.geometry",
    "macl.integrations.lightly",
    "macl.integrations.open_clip",
    "macl.integrations.pytorch_metric_learning",
    "macl.integrations.sentence_transformers",
)
INTERNAL = {
    "macl.losses.ops.Exclusions": "an argument of the operator, made by the losses",
    "macl.losses.ops.Guide": "a part of Exclusions",
    "macl.losses.ops.Listed": "a part of Exclusions",
    "macl.losses.ops.Relation": "a part of Exclusions",
    "macl.losses.ops.Selection": "what selected returns: name and reason",
    "macl.losses.ops.ShiftedCosineTemperature": "the map of DySTreSS(shift=…)",
    "macl.integrations.pytorch_metric_learning.Labeled": "pairs, made by ContrastiveLoss",
    "macl.integrations.pytorch_metric_learning.Mined": "pairs, made by ContrastiveLoss",
    "macl.integrations.pytorch_metric_learning.equal_labels": "used by ContrastiveLoss",
}
TEXT = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md")}
DIRECTIVES = set(re.findall(r"^::: ([\w.]+)", "\n".join(TEXT.values()), re.M))
EXAMPLES = "\n".join(
    b.code for text in TEXT.values() for b in blocks(text) if b.language == "python"
)


def public(module: str) -> list[str]:
    """The public names of a module: its `__all__`, or what it defines."""
    loaded = pytest.importorskip(module)
    if hasattr(loaded, "__all__"):
        return list(loaded.__all__)
    defined = inspect.getmembers(
        loaded, lambda one: inspect.isclass(one) or inspect.isfunction(one)
    )
    return [name for name, one in defined if one.__module__ == module and not name.startswith("_")]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_its_place(module: str) -> None:
    described = {_resolved(name) for name in DIRECTIVES}
    missing = []
    for name in public(module):
        full = f"{module}.{name}"
        thing = getattr(importlib.import_module(module), name)
        if full in INTERNAL or module in DIRECTIVES or full == "macl.diagnose":
            continue
        if id(thing) not in described:
            missing.append(full)
    assert not missing


def _resolved(path: str) -> int:
    """The identity of what a directive names; an unknown name is an error."""
    try:
        return id(importlib.import_module(path))
    except ModuleNotFoundError:
        module, name = path.rsplit(".", 1)
        return id(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_an_example(module: str) -> None:
    unused = [
        name
        for name in public(module)
        if f"{module}.{name}" not in INTERNAL and not re.search(rf"\b{name}\b", EXAMPLES)
    ]
    assert not unused


def test_no_docstring_has_an_example_that_is_not_run() -> None:
    """Examples are on the pages, where they run; a `>>>` in a docstring would not."""
    sources = (DOCS.parent / "src").rglob("*.py")
    assert [str(path) for path in sources if ">>> " in path.read_text(encoding="utf-8")] == []
