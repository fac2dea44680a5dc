"""The README.md of an exported encoder: what it is, how it was made, how good it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import macl
from macl.core.plugins import load_object
from macl.probes.score import LAST
from macl.runs import Run


def model_card(run: Run, files: Sequence[str], licence: str) -> str:
    """Markdown with the header that model hubs read. Folders of the author's machine stay out.

    Written by hand: every export has a card, and huggingface_hub, which could write the three keys
    of the header, comes with the text extra alone.
    """
    recipe = run.recipe
    loss = [] if recipe.loss is None else [recipe.loss.name]
    header = {
        "license": licence,
        "library_name": run.modality.library,
        "tags": ["contrastive-learning", "self-supervised-learning", *loss],
    }
    trained = f"by {recipe.method.name}" + (f" with the loss {loss[0]}" if loss else "")
    return "\n".join(
        [
            "---",
            yaml.safe_dump(header, sort_keys=False).strip(),
            "---",
            "",
            f"# {recipe.name}",
            "",
            f"{recipe.description or recipe.name} An encoder of {recipe.modality}, trained "
            f"{'with' if _takes_labels(run) else 'without'} labels {trained} "
            f"(macl {macl.__version__}).",
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


def _takes_labels(run: Run) -> bool:
    """Whether the loss learned from the classes of the samples."""
    loss = run.recipe.loss
    return loss is not None and bool(getattr(load_object(loss.target), "takes_labels", False))


def _results(run: Run) -> Iterator[str]:
    # The encoder of the export is the last one.
    recorded = run.results().get("scores", [])
    scores = [score for score in recorded if score.get("encoder", LAST) == LAST]
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
        # The settings of the evaluation are with its results.
        return {k: _portable(v) for k, v in value.items() if v is not None and k != "evaluation"}
    if isinstance(value, list | tuple):
        return [_portable(each) for each in value]
    return value.name if isinstance(value, Path) else value
