"""What `mkdocs build` does beyond its configuration: see the modules beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mkdocs.structure.files import File, Files

import menu
from expansion import expand
from mathematics import to_mathml
from tutorials import executed


def on_config(config: Any) -> None:
    """The menu of the folders; a choice of versions only where mike publishes them."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        ((name, pages),) = section.items()
        if name in menu.FOLDERS:
            pages += menu.further_pages(docs, name, pages)
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}


def on_files(files: Files, config: Any) -> None:
    """Adds the executed tutorials and their pictures."""
    folder = Path(config.docs_dir) / "tutorials"
    for path, content in executed(folder).items():
        file = File.generated(config, f"tutorials/{path}", content=content)
        if (old := files.get_file_from_path(file.src_uri)) is not None:
            files.remove(old)
        files.append(file)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The generated parts of a page in place of their marks."""
    return expand(markdown, page.meta)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML."""
    return to_mathml(content)
