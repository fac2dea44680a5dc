"""docs/extending.md names the arguments that methods have, and its examples are whole."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from macl.modalities.base import Modality

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
NAMED = [
    (name, arguments)
    for name, arguments in re.findall(r"`(\w+)\(([\w, ]*)\)`", PAGE)
    if hasattr(Modality, name)
]


@pytest.mark.parametrize(("name", "arguments"), NAMED)
def test_methods_are_named_with_their_arguments(name: str, arguments: str) -> None:
    own = [each for each in inspect.signature(getattr(Modality, name)).parameters if each != "self"]
    assert ", ".join(own) == arguments


def test_every_example_is_whole() -> None:
    # Without the one that puts the parts of the plug-in together, which tests/test_plugins.py runs.
    examples = re.findall(r"(?<!-->\n)```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) > 4
    for code in examples:
        exec(code, {"__name__": "example"})
