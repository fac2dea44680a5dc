"""Executes the tutorials and turns them into pages.

A tutorial is a jupytext file `docs/tutorials/NN_name.py` (py:percent). Each one runs in a kernel of
its own, in an empty folder; an error, or more than 90 seconds, fails the build. Where
DOCS_REUSE_TUTORIALS is set, a tutorial that did not change since it was executed last is not
executed again (`make docs-serve`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
from nbclient import NotebookClient

LIMIT = int(os.environ.get("DOCS_TUTORIAL_SECONDS", "90"))
"""Seconds that a tutorial may take; more are for machines that do something else meanwhile."""
JOBS = 2
CACHE = Path("build/tutorials")
COLAB = "https://colab.research.google.com/github"

Pages = dict[str, str | bytes]


def executed(folder: Path) -> Pages:
    """Pages and pictures by their path below the folder; with a list of the tutorials as index."""
    sources = sorted(folder.glob("*.py"))
    os.environ.update(  # the kernels inherit it
        OMP_NUM_THREADS="1",
        MPLBACKEND="module://matplotlib_inline.backend_inline",
        PYTHONPATH=os.pathsep.join([str(Path("src").resolve()), os.environ.get("PYTHONPATH", "")]),
    )
    with ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(_page, sources))
    pages: Pages = {}
    for result in results:
        pages |= result
    if not (folder / "index.md").exists():
        pages["index.md"] = _index(sources)
    return pages


def run(source: Path) -> dict[str, object]:
    """The notebook of a tutorial with its outputs, as JSON values."""
    notebook = jupytext.read(source)
    with tempfile.TemporaryDirectory() as place:
        resources = {"metadata": {"path": place}}
        client = NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=resources)
        start = time.monotonic()
        client.execute()
        taken = time.monotonic() - start
    if taken > LIMIT:
        raise RuntimeError(f"{source.name} took {taken:.0f} s; a tutorial may take {LIMIT}.")
    print(f"{source.name}: {taken:.0f} s")
    return json.loads(json.dumps(notebook))


def _page(source: Path) -> Pages:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    stored = CACHE / f"{source.stem}-{digest}.json"
    if os.environ.get("DOCS_REUSE_TUTORIALS") and stored.exists():
        notebook = json.loads(stored.read_text(encoding="utf-8"))
    else:
        notebook = run(source)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(notebook), encoding="utf-8")
    return to_pages(source.stem, notebook)


def to_pages(stem: str, notebook: dict[str, object]) -> Pages:
    """The page of a notebook and its pictures; `# alt: …` in a cell is its picture's alt text."""
    parts, files = [], {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(text)
            continue
        alt = re.search(r"^# alt: *(.+)$", text, re.M)
        shown = re.sub(r"^# alt:.*\n?", "", text, flags=re.M).strip()
        parts.append(f"```python\n{shown}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{len(files) + 1}.png"
                files[name] = base64.b64decode("".join(data["image/png"]))
                caption = alt[1] if alt else f"Output of the code above, picture {len(files)}"
                parts.append(f"![{caption}]({name})")
            words = "".join(output.get("text", data.get("text/plain", ""))).strip()
            if words and "image/png" not in data and output.get("name") != "stderr":
                parts.append(f'```text title="Output"\n{words}\n```')
    source = f"\n\n*This page is the executed file `docs/tutorials/{stem}.py`.*\n"
    title, *rest = parts
    text = "\n\n".join([_below_title(title, _links(stem)), *rest]) + source
    return {f"{stem}.md": text, f"{stem}.ipynb": to_notebook(notebook), **files}


def to_notebook(notebook: dict[str, object]) -> str:
    """The notebook as a file that Jupyter and Colab open: it installs macl first."""
    install = {
        "cell_type": "code",
        "execution_count": None,
        "id": "install",
        "metadata": {},
        "outputs": [],
        "source": "%pip install --quiet 'macl[train,text,graphs,molecules]'",
    }
    return json.dumps({**notebook, "cells": [install, *notebook["cells"]]}, ensure_ascii=False)


def _links(stem: str) -> str:
    """Where the notebook is; Colab opens the one that `make docs-publish` puts on gh-pages."""
    links = f"[Notebook]({stem}.ipynb)"
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        place = f"{COLAB}/{repository}/blob/gh-pages/latest/tutorials/{stem}.ipynb"
        links += f" · [![Open in Colab](../assets/colab.svg)]({place})"
    return links


def _below_title(text: str, line: str) -> str:
    """`line` as a paragraph of its own below the first heading."""
    heading, _, rest = text.partition("\n")
    return f"{heading}\n\n{line}\n{rest}"


def _index(sources: list[Path]) -> str:
    lines = [
        "# Tutorials",
        "",
        "Each page is a program that was executed when this site was built.",
        "",
    ]
    for source in sources:
        title = re.search(r"^# # (.+)$", source.read_text(encoding="utf-8"), re.M)
        lines.append(f"- [{title[1] if title else source.stem}]({source.stem}.md)")
    lines += ["", "[Examples for other libraries](examples.md): short files, one for each."]
    return "\n".join(lines) + "\n"
