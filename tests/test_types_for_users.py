"""A user's program with every public name: `make types` checks it as `mypy --strict` would."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import macl

PROGRAM = Path(__file__).parent / "typing" / "public_names.py"


def test_the_program_uses_every_public_name() -> None:
    used: set[str] = set()
    for node in ast.walk(ast.parse(PROGRAM.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "macl"
        ):
            used.add(node.attr)
    assert set(macl.__all__) - used == set()


def test_the_program_is_checked_strictly() -> None:
    """Together with macl, so that the types of torch, a minute's work, are read once."""
    project = PROGRAM.parents[2] / "pyproject.toml"
    settings = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"] is True
    assert "tests/typing" in settings["files"]
    for override in settings["overrides"]:  # are for macl and for libraries, torch not among them
        assert not any(fnmatch(name, pattern) for pattern in override["module"]
                       for name in (PROGRAM.stem, "torch", "torch.nn"))  # fmt: skip
