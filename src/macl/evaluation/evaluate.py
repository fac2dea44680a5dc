"""Evaluate a run, or an encoder from elsewhere: command → run → modality."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from macl import modalities, recipes
from macl.core.errors import UserError, nearest
from macl.core.files import atomic_write
from macl.modalities.base import Modality
from macl.modalities.braces import path_exists
from macl.modalities.embedding import embedder
from macl.probes.score import BEST, Score
from macl.recipes import Overrides, Sections
from macl.runs import Run

SECTIONS = ("evaluation.", "data.")
"""What can be overridden for a run; its encoder and views are as they were trained."""


def evaluate(
    run: Run,
    overrides: Overrides | None = None,
    *,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
    best: bool = False,
) -> list[Score]:
    """Score the encoder of a run and record the scores in its results.json.

    Args:
        run: a run; of an unfinished one the encoder of its last checkpoint is taken.
        overrides: of keys below "evaluation." and "data.".
        data: other data than the recipe's.
        protocols: instead of the recipe's.
        best: the encoder with the highest monitored score, instead of the last one.

    Returns:
        The scores. Those of `best` are recorded too, beside those of the last encoder, with
        encoder="best"; those of an unfinished run are not.
    """
    asked = _asked(run.modality, run.recipe.evaluation, overrides, data, protocols)
    wrong = [key for key in asked if not key.startswith(SECTIONS)]
    if wrong:
        raise UserError(
            f"{wrong[0]}: the run is trained; only evaluation.KEY and data.KEY can still be set."
        )
    recipe = recipes.override(run.recipe, asked)
    encoder = run.best_encoder if best else run.encoder
    scores = _score(run.modality, recipe, encoder, run.folder, recipe.workers, recipe.seed)
    if best:
        scores = [replace(score, encoder=BEST) for score in scores]
    elif not run.is_finished:
        return [replace(score, encoder="unfinished") for score in scores]
    run.record(scores)
    return scores


def evaluate_encoder(
    name: str,
    overrides: Overrides | None = None,
    *,
    modality: str | None = None,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
) -> list[Score]:
    """Score an encoder that is not part of a run.

    Args:
        name: a file, a folder or a name that a modality recognises; see `Modality.encoder_forms`.
        overrides: of keys below "evaluation.", "data.", "encoder." and "views.".
        modality: of the encoder; by default the first that recognises `name`.
        data: what to evaluate on.
        protocols: by default those of the evaluation section, or those that `data` is for.
    """
    found = modalities.get(modality) if modality is not None else recognise(name)
    asked = _asked(found, found.EvaluationConfig(), overrides, data, protocols)
    resolve = partial(recipes.resolve_sections, found.name, overrides=asked)
    encoder, sections = found.open_encoder(name, resolve)
    return _score(found, sections, encoder, None)


def write_scores(path: Path, encoder: str, scores: Iterable[Score]) -> None:
    """Write scores as JSON, with the name of what was evaluated."""
    document = {"encoder": encoder, "scores": [score.as_dict() for score in scores]}
    atomic_write(
        path, lambda file: file.write(json.dumps(document, indent=2, default=str).encode())
    )


def _score(
    modality: Modality[Any, Any, Any, Any],
    sections: Sections | recipes.Recipe,
    encoder: nn.Module,
    folder: Path | None,
    workers: int = 0,
    seed: int = 0,
) -> list[Score]:
    config = modality.complete(sections.evaluation, sections.views, folder)
    views = modality.build_views(sections.views, encoder.eval())
    embed = embedder(encoder, views, workers=workers)
    return modality.evaluate(config, sections.data, embed, encoder, seed)


def _asked(
    modality: Modality[Any, Any, Any, Any],
    config: Any,
    overrides: Overrides | None,
    data: Path | None,
    protocols: Sequence[str] | None,
) -> Overrides:
    """What is asked for, as typed overrides; explicit ones win over what `data` implies."""
    asked: dict[str, Any] = {}
    if data is not None:
        if not path_exists(data):
            raise UserError(f"--data {data}: there is no such file or folder.")
        if protocols is None:
            protocols = modality.implied_protocols(data, config)
        asked |= modality.data_overrides(data.absolute(), protocols)
    if protocols is not None:
        asked["evaluation.protocols"] = list(protocols)
    return asked | dict(overrides or {})


def recognise(name: str) -> Modality[Any, Any, Any, Any]:
    """The first modality that recognises an encoder; `UserError` with what each can open."""
    forms: list[str] = []
    known: list[str] = []
    for each in modalities.names():
        try:
            modality = modalities.get(each)
        except UserError:  # its extra is not installed
            continue
        if modality.recognises_encoder(name):
            return modality
        forms.append(f"{each}: {modality.encoder_forms}")
        known += modality.encoder_names()
    raise UserError(
        f"{name} is no run (`macl train RECIPE --out {name}` makes one), and no modality "
        f"recognises it as an encoder.{nearest(name, known)} An encoder is\n  " + "\n  ".join(forms)
    )
