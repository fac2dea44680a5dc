"""Evaluate a run by its recipe's protocols, or by those that the user asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from macl.config import UserError
from macl.embedding import embedder
from macl.experiments import recipe as recipes
from macl.modalities.base import ENCODER_FILE, Score
from macl.runs import Run


def judge(
    run: Run,
    overrides: list[str],
    *,
    data: Path | None = None,
    protocol: str | None = None,
    best: bool = False,
) -> list[Score]:
    """Score the encoder and record the scores in results.json.

    Args:
        run: a finished run.
        overrides: `key=value` for the evaluation section, with or without its name in front, and
            `data.key=value` for the data.
        data: other data than the recipe's.
        protocol: comma-separated protocols instead of the recipe's.
        best: the encoder that the monitor liked best, instead of the last one. Its scores are
            returned and not recorded: results.json is about the last.
    """
    sections = ("evaluation.", "data.")
    given = [o if o.startswith(sections) else f"evaluation.{o}" for o in overrides]
    if protocol is not None:
        given.append(f"evaluation.protocols=[{protocol}]")
    if data is not None:
        given.append(f"data.path={data.resolve()}")
    recipe = recipes.resolve(run.recipe.model_dump(mode="json"), given)
    encoder, embed = run.encoder, run.embed
    if best:
        folder = run.folder / "best"
        if not (folder / ENCODER_FILE).is_file():
            raise UserError(f"{run.folder} kept no best encoder: nothing was monitored.")
        encoder = run.modality.load_encoder(recipe.encoder, folder).eval()
        embed = embedder(encoder, run.views, workers=recipe.workers)
    scores = run.modality.evaluate(recipe.evaluation, recipe.data, embed, encoder, recipe.seed)
    if best:
        return [replace(s, details={**s.details, "encoder": "best"}) for s in scores]
    run.record(scores)
    return scores
