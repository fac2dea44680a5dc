"""Judge a sentence encoder that is no run: what Hugging Face or sentence-transformers saved."""

from __future__ import annotations

from pathlib import Path

from macl import recipes
from macl.evaluation.evaluate import as_overrides
from macl.modalities.embedding import embedder
from macl.modalities.text import MODALITY
from macl.modalities.text.encoders import TextEncoderConfig
from macl.modalities.text.folders import load_text_encoder
from macl.modalities.text.senteval import is_senteval
from macl.probes.score import Score


def judge_text_encoder(
    name: Path, overrides: list[str], *, data: Path | None = None, tasks: str | None = None
) -> list[Score]:
    """Score an encoder as it is.

    Args:
        name: a folder, or package:NAME.
        overrides: `key=value` for the evaluation section, with or without its name in front, and
            `data.key=value`, `encoder.key=value`, `views.key=value`.
        data: labelled sentences, or SentEval's folder.
        tasks: comma-separated; by default all of SentEval's where `data` is that, else those of
            the evaluation section.
    """
    if tasks is None and data is not None and is_senteval(data):
        tasks = "sts,transfer"
    sections = ("evaluation.", "data.", "encoder.", "views.")
    # Nothing is trained here; a recipe is how the sections that matter are read and checked.
    untrained = {"method": {"name": "simclr"}, "loss": {"name": "macl"}}
    values = {"name": name.name, "modality": "text", "encoder": {"name": str(name)}, **untrained}
    recipe = recipes.resolve(
        values, recipes.parse(as_overrides(MODALITY, overrides, data, tasks, sections), values)
    )
    config: TextEncoderConfig = recipe.encoder
    encoder = load_text_encoder(config).eval()
    embed = embedder(encoder, MODALITY.build_views(recipe.views, encoder))
    return MODALITY.evaluate(recipe.evaluation, recipe.data, embed, encoder, recipe.seed)
