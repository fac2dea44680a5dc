"""The README.md of an exported encoder: what it is, how it was made, how good it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from macl.runs import Run

LIBRARIES = {"text": "sentence-transformers", "graphs": "pyg", "molecules": "pyg"}
"""What opens the encoders of a modality; images are torchvision's and timm's."""


def model_card(run: Run, files: Sequence[str], licence: str) -> str:
    """Markdown with the header that model hubs read. Folders of the author's machine stay out."""
    recipe = run.recipe
    header = {
        "license": licence,
        "library_name": LIBRARIES.get(recipe.modality, "timm"),
        "tags": ["contrastive-learning", "self-supervised-learning", recipe.loss.name],
    }
    return "\n".join(
        [
            "---",
            yaml.safe_dump(header, sort_keys=False).strip(),
            "---",
            "",
            f"# {recipe.name}",
            "",
            f"{recipe.description or recipe.name} An encoder of {recipe.modality}, trained without "
            f"labels by {recipe.method.name} with the loss {recipe.loss.name} "
            f"(macl {version('macl')}).",
            "",
            "## Files",
            "",
            *(f"- {line}" for line in files),
            "",
            "## Results",
            "",
            *_results(run),
            "",
            "## Recipe and data",
            "",
            "```yaml",
            yaml.safe_dump(_portable(recipe.model_dump()), sort_keys=False, allow_unicode=True)
            + "```",
            "",
            f"Licence: {licence}",
            "",
        ]
    )


def _results(run: Run) -> Iterator[str]:
    scores = run.results().get("scores", [])
    if not scores:
        yield "Not evaluated yet: `macl evaluate RUN`, then export again."
        return
    yield "| protocol | task | split | metric | value |"
    yield "|---|---|---|---|---|"
    for score in scores:
        cells = [str(score[key]) for key in ("protocol", "task", "split", "metric")]
        yield f"| {' | '.join(cells)} | {score['value']:.2f} |"


def _portable(value: Any) -> Any:
    """Plain values, and of a path its name only."""
    if isinstance(value, dict):
        # How the encoder was judged stands with its results.
        return {k: _portable(v) for k, v in value.items() if v is not None and k != "evaluation"}
    if isinstance(value, list | tuple):
        return [_portable(each) for each in value]
    return value.name if isinstance(value, Path) else value
