"""The tutorials as text: they parse, what they import exists, and each ends with what to try next.

`make docs` executes them from a clean kernel; doing it here as well would cost minutes.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.py"))
ROOT = FOLDER.parents[1]


def cells(path: Path) -> list[tuple[str, str]]:
    """Kind ("markdown" or "code") and text of every cell of a py:percent file."""
    parts = re.split(r"^# %%(.*)\n", path.read_text(encoding="utf-8"), flags=re.M)[1:]
    kinds = ["markdown" if "[markdown]" in mark else "code" for mark in parts[::2]]
    return list(zip(kinds, parts[1::2], strict=True))


def imported(tree: ast.AST) -> list[tuple[str, str | None]]:
    """Every imported module, with the name that is taken from it."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def code(path: Path) -> ast.Module:
    return ast.parse("\n".join(text for kind, text in cells(path) if kind == "code"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_can_be_opened_as_a_notebook(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="needs jupytext")
    notebook = jupytext.read(path)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds == [kind for kind, _ in cells(path)]
    assert notebook.metadata["kernelspec"]["name"] == "python3"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_title_pictures_and_an_end(path: Path) -> None:
    (first, title), *_, (last, end) = cells(path)
    assert first == last == "markdown"
    assert title.startswith(f"# # {int(path.name[:2])}. ")
    heading, _, rest = end.rpartition("# ## ")
    assert rest.startswith("What to try next\n"), heading
    assert rest.count("\n# - ") >= 3
    drawing = [text for kind, text in cells(path) if kind == "code" and "plt.subplots" in text]
    assert drawing
    for text in drawing:
        assert text.startswith("# alt: "), "a picture needs a text for those who cannot see it"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_what_a_tutorial_imports_exists(path: Path) -> None:
    for module, name in imported(code(path)):
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            if module.partition(".")[0] == "macl" and getattr(error, "name", "") == module:
                raise
            pytest.skip(f"{module} is not installed")
        if name is not None and not hasattr(found, name):  # a submodule that is not loaded yet
            importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_files_that_a_tutorial_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`(examples/\w+\.py)`", text):
        assert (ROOT / name).is_file(), name
    numbers = {int(number) for number in re.findall(r"[Tt]utorial (\d)", text)}
    assert numbers <= set(range(1, len(TUTORIALS) + 1))
