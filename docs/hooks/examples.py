"""The files of examples/ as sections of a page."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
TITLES = {
    "lightly_simclr": "lightly",
    "pytorch_metric_learning_trainer": "pytorch-metric-learning",
    "sentence_transformers_trainer": "sentence-transformers",
    "transformers_trainer": "transformers",
    "torch_ddp": "DistributedDataParallel",
    "lightning_module": "Lightning",
    "pyg_loop": "PyTorch Geometric",
}
"""The heading of each file, in the order of the page; others follow under their own name."""


def sections() -> str:
    """Markdown: what each example shows, and its code."""
    parts = []
    known = list(TITLES)
    others = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in known)
    for path in (FOLDER / f"{stem}.py" for stem in [*known, *others]):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        first = (ast.get_docstring(tree) or "").split("\n\n")[0]
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
        parts += [f"## {TITLES.get(path.stem, path.stem)}", "", first, ""]
        parts += ["<!-- not run: tests/test_examples.py runs it -->"]
        parts += [f'```python title="examples/{path.name}"', code, "```", ""]
    return "\n".join(parts)
