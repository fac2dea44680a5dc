"""The scores of a run, or of an encoder from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from macl import modalities, recipes
from macl.core.devices import Placement, place
from macl.core.errors import UserError
from macl.core.section import absolute
from macl.modalities.base import Modality
from macl.modalities.embedding import embedder, leading
from macl.probes.score import BEST, Score
from macl.recipes import Overrides, Sections
from macl.runs import Run
from macl.runs.elsewhere import Elsewhere, recognize


def score_run(
    run: Run,
    overrides: Overrides | None = None,
    *,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
    best: bool = False,
    dims: int | None = None,
) -> list[Score]:
    """Score the encoder of a run and record the scores in its results.json; see `macl.evaluate`.

    Scores of an unfinished run, or of the first `dims` coordinates, are not recorded; those of the
    `best` encoder are, with encoder="best", beside those of the last one.
    """
    asked = _asked(run.modality, run.recipe.evaluation, overrides, data, protocols)
    wrong = [key for key in asked if not key.startswith(("evaluation.", "data."))]
    if wrong:
        raise UserError(
            f"{wrong[0]}: the run is trained; only evaluation.KEY and data.KEY can still be set."
        )
    recipe = recipes.override(run.recipe, asked)
    encoder = run.best_encoder if best else run.encoder
    scores = _score(run.modality, recipe, encoder, run.placement, run.folder, dims)
    if best:
        scores = [replace(score, encoder=BEST) for score in scores]
    elif not run.is_finished:
        return [replace(score, encoder="unfinished") for score in scores]
    if dims is None:
        run.record(scores)
    return scores


def score_encoder(
    name: str,
    overrides: Overrides | None = None,
    *,
    modality: str | None = None,
    data: Path | None = None,
    protocols: Sequence[str] | None = None,
    placement: Placement | None = None,
    dims: int | None = None,
) -> list[Score]:
    """Score an encoder that is not part of a run; overrides are of any of its sections."""
    kind = modalities.get(modality) if modality is not None else recognize(name)
    asked = _asked(kind, kind.sections["evaluation"](), overrides, data, protocols)
    opened = Elsewhere.open(name, asked, modality=kind.name)
    return _score(kind, opened.sections, opened.encoder, placement or place(), None, dims)


def _score(
    modality: Modality,
    sections: Sections | recipes.Recipe,
    encoder: nn.Module,
    placement: Placement,
    folder: Path | None,
    dims: int | None = None,
) -> list[Score]:
    workers, seed = getattr(sections, "workers", 0), getattr(sections, "seed", 0)
    config = modality.complete(sections.evaluation, sections.views, folder)
    views = modality.build_views(sections.views, encoder.eval().to(placement.device))
    embed = embedder(encoder, views, workers=workers, placement=placement, stays=True)
    scores = modality.evaluate(config, sections.data, leading(embed, dims), encoder, seed)
    # What every score of an encoder depends on besides its protocol.
    weight = next(encoder.parameters(), torch.empty(0))
    half = placement.precision in ("bf16", "16")
    precision = placement.precision if half else str(weight.dtype).removeprefix("torch.")
    made_by: dict[str, Any] = {"device": placement.device.type, "precision": precision}
    if inputs := modality.input_settings(sections.views):
        made_by["input"] = dict(inputs)
    if dims is not None:
        made_by["dims"] = dims
    return [replace(score, details={**made_by, **score.details}) for score in scores]


def _asked(
    modality: Modality,
    config: Any,
    overrides: Overrides | None,
    data: Path | None,
    protocols: Sequence[str] | None,
) -> Overrides:
    """What is asked for, as typed overrides; explicit ones win over what `data` implies."""
    asked: dict[str, Any] = {}
    if data is not None:
        if protocols is None:
            protocols = modality.implied_protocols(data, config)
        asked |= modality.data_overrides(absolute(data), protocols)
    if protocols is not None:
        asked["evaluation.protocols"] = list(protocols)
    return asked | dict(overrides or {})
