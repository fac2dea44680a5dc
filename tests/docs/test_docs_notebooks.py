"""A tutorial is a page and a notebook that Jupyter and Colab open."""

from __future__ import annotations

import json

import docs_pages  # noqa: F401, the path of docs/hooks
import nbformat
import pytest

from tutorials import to_pages

CODE = "# alt: a map\nprint(1)"


@pytest.fixture
def notebook() -> dict[str, object]:
    cells = [nbformat.v4.new_markdown_cell("# A title\n\nText."), nbformat.v4.new_code_cell(CODE)]
    return json.loads(json.dumps(nbformat.v4.new_notebook(cells=cells)))


def test_the_notebook_is_valid_and_installs_first(notebook: dict[str, object]) -> None:
    pages = to_pages("01_name", notebook)
    made = nbformat.reads(pages["01_name.ipynb"], as_version=4)
    nbformat.validate(made)
    assert made.cells[0].source.startswith("%pip install")
    assert made.cells[2].source == CODE


def test_the_page_links_to_it(notebook: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    page = to_pages("01_name", notebook)["01_name.md"]
    assert page.startswith("# A title\n\n[Notebook](01_name.ipynb)\n\nText.")
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/macl")
    page = to_pages("01_name", notebook)["01_name.md"]
    assert "github/owner/macl/blob/gh-pages/latest/tutorials/01_name.ipynb" in page
