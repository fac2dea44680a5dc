"""Messages name Python arguments; the command line shows flags instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import macl
from macl import recipes
from macl.cli.flags import with_flags
from macl.core.errors import UserError

SOURCE = Path(macl.__file__).parent
BUILD_COMMANDS = {"experiments/running.py", "paper/reproduce.py"}
"""Modules that write whole commands, to run them or to print them in a table."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Use `resume=True` or `out=`.", "Use --resume or --out."),
        ("without it: `onnx=False`", "without it: --no-onnx"),
        ("`layouts=huggingface` is", "--layout huggingface is"),
        ("`macl.train('my run', resume=True)`", "`macl train 'my run' --resume`"),
        ("`macl.train('R', out='x')`", "`macl train R --out x`"),
        ("`macl.broken(` and `a=1`", "`macl.broken(` and `a=1`"),
    ],
)
def test_arguments_become_flags(text: str, shown: str) -> None:
    assert with_flags(text) == shown


def test_no_message_below_the_command_line_names_a_flag() -> None:
    named = []
    for file in SOURCE.rglob("*.py"):
        place = str(file.relative_to(SOURCE))
        if place.startswith("cli/") or place in BUILD_COMMANDS:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            texts = [node.value] if isinstance(node, ast.Constant) else []
            named += [
                f"{place}:{node.lineno}: {text}"
                for text in texts
                if isinstance(text, str) and re.search(r"(^|[\s`(])--[a-z]", text)
            ]
    assert not named


def test_a_recipe_without_its_data_says_how_to_give_them() -> None:
    with pytest.raises(UserError, match=r"data: source=folder needs path.*`data=PATH`\.$"):
        recipes.load("imagenette-small")
