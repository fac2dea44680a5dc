"""The README.md of an exported encoder: what it is, how it was made, how good it is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import macl
from macl.core.plugins import load_object
from macl.core.shown import one_line
from macl.probes.score import LAST, score_settings
from macl.recipes import dump
from macl.runs import Run

IMPORTS = {
    "macl.": "import macl",
    "timm.": "import timm",
    "AutoModel.": "from transformers import AutoImageProcessor, AutoModel",
    "SentenceTransformer(": "from sentence_transformers import SentenceTransformer",
}
"""What the code of a card uses → the import that it needs."""


def model_card(run: Run, files: Sequence[str], licence: str, results: str = "") -> str:
    """Markdown with the header that model hubs read. Folders of the author's machine stay out.

    Written by hand: every export has a card, and huggingface_hub, which could write the three keys
    of the header, comes with the text extra alone.
    """
    recipe = run.recipe
    loss = recipe.loss
    library, code = run.modality.usage(run.encoder, recipe.views)
    prepared = run.modality.preparation(recipe.data, recipe.views)
    weights = sum(value.numel() for value in run.encoder.parameters())
    header: dict[str, Any] = {"license": licence, "library_name": library}
    if recipe.epochs == 0 and recipe.steps is None:
        trained = "not trained by macl: its weights are those that it started from"
    else:
        with_labels = loss and getattr(load_object(loss.target), "takes_labels", False)
        trained = (
            f"trained {'with' if with_labels else 'without'} labels by {recipe.method.name}"
            + (f" with the loss {loss.name}" if loss else "")
            + f" for {recipe.length} of batches of {recipe.batch_size}"
        )
        names = [loss.name] if loss else []
        header["tags"] = ["contrastive-learning", "self-supervised-learning", *names]
    imports = [line for used, line in IMPORTS.items() if any(used in each for each in code)]
    preprocessing = f"Preprocessing: {_text(prepared)}\n\n" if prepared else ""
    # The settings of the evaluation are with its results.
    settings = dump(recipe, paths=False, exclude_none=True, exclude={"evaluation"})
    return f"""---
{yaml.safe_dump(header, sort_keys=False).strip()}
---

# {_text(recipe.name)}

An encoder of {recipe.modality}: {_network(recipe.encoder)}, {weights:,} weights, \
vectors of {run.encoder.out_dim} dimensions, {trained} (macl {macl.__version__}).

## Use

```python
{_lines(*imports, *code)}
```

{preprocessing}## Files

{_lines(*(f"- {_text(line)}" for line in files))}

## Results

{results or _lines(*_results(run))}

## Recipe and data

{_fenced(settings)}

License: {_text(licence)}
"""


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _network(encoder: Any) -> str:
    """What the encoder section names; of a folder its name alone."""
    names = [getattr(part, "name", None) for part in (encoder, *dict(encoder).values())]
    shown = [Path(name).name if "/" in name else name for name in names if isinstance(name, str)]
    return " and ".join(dict.fromkeys(shown)) or "a network of macl"


def _text(text: str) -> str:
    """Text for Markdown that is neither HTML nor a link, a picture or a cell of a table."""
    return html.escape(one_line(text), quote=False).replace("[", r"\[").replace("|", r"\|")


def _fenced(document: str) -> str:
    """YAML between more backticks than it has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", document)), default=0))
    return f"{fence}yaml\n{document}{fence}"


def _results(run: Run) -> Iterator[str]:
    # The encoder of the export is the last one.
    recorded = run.results().get("scores", [])
    scores = [score for score in recorded if score.get("encoder", LAST) == LAST]
    if not scores:
        yield "Not evaluated yet: `macl evaluate RUN`, then export again."
        return
    yield "| protocol | task | split | metric | value | with |"
    yield "|---|---|---|---|---|---|"
    for score in scores:
        cells = [_text(str(score[key])) for key in ("protocol", "task", "split", "metric")]
        settings = _text(score_settings(score.get("details", {})))
        yield f"| {' | '.join(cells)} | {score['value']:.2f} | {settings} |"
