"""Evaluate a run by its recipe's protocols, or by those that the user asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from macl import recipes
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.modalities.base import ENCODER_FILE, Modality
from macl.modalities.embedding import embedder
from macl.probes.score import Score
from macl.runs import Run


def evaluate(
    run: Run,
    overrides: recipes.Overrides | None = None,
    *,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
    best: bool = False,
) -> list[Score]:
    """Evaluate a run's encoder and record the scores in results.json."""
    given = recipes.texts_of(overrides or {})
    protocol = None if protocols is None else ",".join(protocols)
    return run.modality.judge(run, given, data=data, protocol=protocol, best=best)


def evaluate_encoder(
    name: str,
    overrides: recipes.Overrides | None = None,
    *,
    modality: str | None = None,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
) -> list[Score]:
    """Evaluate an encoder that is not part of a run."""
    from macl.modalities.images.judging import judge_image_encoder
    from macl.modalities.text.judging import judge_text_encoder

    given = recipes.texts_of(overrides or {})
    protocol = None if protocols is None else ",".join(protocols)
    if (modality or recognise(name).name) == "text":
        return judge_text_encoder(Path(name), given, data=data, tasks=protocol)
    return judge_image_encoder(name, given, data=data, protocol=protocol)


def recognise(name: str) -> Modality[Any, Any, Any, Any]:
    """The modality of an encoder that is not part of a run."""
    from macl import modalities
    from macl.modalities.images.checkpoints import is_checkpoint
    from macl.modalities.text.folders import looks_like_encoder

    path = Path(name)
    if not is_checkpoint(path):
        if looks_like_encoder(path):
            return modalities.get("text")
        if path.exists() or "/" in name:
            raise UserError(f"{name} is no encoder.")
    return modalities.get("images")


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
        protocol: comma-separated protocols, or tasks for text, instead of the recipe's.
        best: the encoder that the monitor liked best, instead of the last one. Its scores are
            returned and not recorded: results.json is about the last.
    """
    given = as_overrides(run.modality, overrides, data, protocol)
    values = run.recipe.model_dump(mode="json")
    recipe = recipes.resolve(values, recipes.parse(given, values))
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


def as_overrides(
    modality: Modality[Any, Any, Any, Any],
    overrides: list[str],
    data: Path | None,
    protocol: str | None,
    sections: tuple[str, ...] = ("evaluation.", "data."),
) -> list[str]:
    """What a user says about an evaluation, as overrides of a recipe's keys.

    Keys outside `sections` are those of the evaluation.
    """
    given = [o if o.startswith(sections) else f"evaluation.{o}" for o in overrides]
    if protocol is not None:
        key = "tasks" if "tasks" in modality.EvaluationConfig.model_fields else "protocols"
        given.append(f"evaluation.{key}=[{protocol}]")
    if data is not None:
        if not data.exists():
            raise UserError(f"--data {data}: there is no such file or folder.")
        given.append(f"{modality.data_key(data, protocol)}={data.resolve()}")
    return given


def write_scores(path: Path, encoder: str, scores: list[Score]) -> None:
    """Scores as JSON, with the name of what was judged."""
    document = {"encoder": encoder, "scores": [score.as_dict() for score in scores]}
    atomic_write(
        path, lambda file: file.write(json.dumps(document, indent=2, default=str).encode())
    )
