"""A user's program is checked by `mypy --strict` without any setting, with every public name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import macl
from tiny import environment

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


@pytest.mark.slow
def test_the_program_passes_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="needs mypy")
    source = Path(macl.__file__).parents[1]
    # Errors in other libraries are not what is checked. The cache is kept: without it torch's types
    # are read anew, which takes a minute.
    cache = source.parent / ".mypy_cache" / "users"
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={cache}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(PROGRAM)],
        cwd=tmp_path,
        env={**environment(), "MYPYPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
