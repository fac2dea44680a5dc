"""The page: one HTML file that needs no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter

import macl
from macl import geometry, recipes
from macl.core.errors import UserError
from macl.diagnosis import Diagnosis
from macl.experiments.rows import Row, training_figures
from macl.experiments.tables import RowText, correction
from macl.probes.score import score_name
from macl.recipes import Recipe
from macl.reporting.charts import curve_svg, dots_svg, style_of
from macl.reporting.comparison import Comparison, setting_name
from macl.reporting.crossing import Crossing
from macl.reporting.curves import BACKBONE, Chart, column
from macl.reporting.gallery import agreement, gallery
from macl.reporting.histogram import Histogram, histogram_svg
from macl.reporting.items import Looks
from macl.reporting.map import EmbeddingMap
from macl.reporting.palette import MARKERS, PALETTE
from macl.runs import Run

GRID = 4095
"""Positions on the map are whole numbers up to this: finer than any screen."""

TILES = 3
"""Scores at the head of the page, the first of each protocol."""


@dataclass(frozen=True)
class Picture:
    """The map of a run and the presentation of its items."""

    map: EmbeddingMap
    looks: Looks


def run_page(
    run: Run,
    charts: Sequence[Chart],
    picture: Picture | None,
    missing: str,
    crossing: Crossing | None = None,
) -> str:
    """The page of a run; `missing` says why there is no map when there is none.

    With `crossing` it also shows how the two sides of pairs find each other.
    """
    scores = run.results().get("scores", [])
    return _render(
        title=run.recipe.name,
        kind="Run",
        folder=run.folder,
        facts=_facts(run.recipe),
        tiles=_tiles(run, scores),
        scores=scores,
        comparison=None,
        charts=[(chart, _svg(chart)) for chart in charts],
        legend=[],
        picture=None if picture is None else _picture(picture),
        missing=missing,
        crossing=crossing,
        diagnosis=_diagnosis(run),
        recipe=run.recipe,
    )


def _svg(chart: Chart) -> Markup:
    return histogram_svg(chart) if isinstance(chart, Histogram) else curve_svg(chart)


def comparison_page(found: Comparison, charts: Sequence[Chart]) -> str:
    """The page of a comparison: its scores with intervals, and its curves overlaid."""
    first = next(iter(found.settings.values()))[0]
    seeds = max(map(len, found.settings.values()))
    facts = [
        ("settings", str(len(found.settings))),
        ("seeds", str(seeds)),
        *(fact for fact in _facts(first.recipe) if fact[0] not in ("seed", "loss")),
    ]
    return _render(
        title=first.recipe.name,
        kind="Comparison",
        folder=found.folder,
        facts=facts,
        tiles=[],
        scores=[],
        comparison=[
            (metric, dots_svg(metric, rows), [_compared(row) for row in rows])
            for metric, rows in found.metrics.items()
        ],
        correction=correction(found.rows),
        charts=[(chart, curve_svg(chart)) for chart in charts],
        legend=[(name, style_of(number)) for number, name in enumerate(found.settings)],
        picture=None,
        missing="",
        diagnosis=None,
        recipe=first.recipe,
    )


def runs_page(runs: Mapping[str, Run], charts: Sequence[Chart]) -> str:
    """The page of several runs: their scores side by side, and their curves in shared charts."""
    first = next(iter(runs.values()))
    facts = [_facts(run.recipe) for run in runs.values()]
    shared = [fact for fact in facts[0] if all(fact in others for others in facts)]
    return _render(
        title=", ".join(dict.fromkeys(run.recipe.name for run in runs.values())),
        kind="Runs",
        folder=first.folder,
        facts=[("runs", str(len(runs))), *shared],
        tiles=[],
        scores=[],
        comparison=None,
        side_by_side={
            "Scores": _score_table(runs),
            "What differs in the recipes": _recipe_table(runs),
        },
        names=list(runs),
        charts=[(chart, curve_svg(chart)) for chart in charts],
        legend=[(name, style_of(number)) for number, name in enumerate(runs)],
        picture=None,
        missing="",
        diagnosis=None,
        recipe=first.recipe,
    )


def _score_table(runs: Mapping[str, Run]) -> dict[str, list[str]]:
    """Name of a score → its value in each run; empty where a run does not have it."""
    found = [
        {score_name(score): _figure(score["value"]) for score in run.results().get("scores", [])}
        for run in runs.values()
    ]
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: [scores.get(name, "") for scores in found] for name in names}


def _recipe_table(runs: Mapping[str, Run]) -> dict[str, list[str]]:
    """Key of the recipe → its value in each run, where the runs differ."""
    found = [dict(_flat(run.recipe.model_dump(mode="json"))) for run in runs.values()]
    keys = dict.fromkeys(key for values in found for key in values)
    table = {key: [values.get(key, "") for values in found] for key in keys}
    return {key: values for key, values in table.items() if len(set(values)) > 1}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as text) of nested mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _render(**found: Any) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = _figure
    found = {"side_by_side": {}, "names": [], "correction": "", "crossing": None} | found
    script = _asset("charts.js") + _asset("map.js")
    # Only this script may run, and nothing may be fetched, whatever text the data contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    recipe: Recipe = found.pop("recipe")
    return environment.from_string(_asset("template.html")).render(
        style=Markup(_asset("style.css")),
        script=Markup(script),
        script_hash=digest,
        palette=PALETTE,
        description=recipe.description,
        recipe=recipes.dump(recipe),
        versions=f"macl {macl.__version__}, torch {version('torch')}",
        **found,
    )


def _asset(name: str) -> str:
    return resources.files("macl.reporting").joinpath(name).read_text(encoding="utf-8")


def _facts(recipe: Recipe) -> list[tuple[str, str]]:
    """The main settings, for the head of the page."""
    encoder = getattr(recipe.encoder, "name", None)
    facts = {
        "modality": recipe.modality,
        "method": recipe.method.name,
        "loss": "none" if recipe.loss is None else recipe.loss.name,
        "encoder": encoder,
        "batch": f"{recipe.batch_size:,}",
        "epochs": f"{recipe.epochs:,}",
        "seed": recipe.seed,
    }
    return [(key, str(value)) for key, value in facts.items() if value is not None]


def _tiles(run: Run, scores: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The first score of each protocol, then the training figures of the last epoch."""
    firsts = {score["protocol"]: score for score in reversed(scores)}
    chosen = [score for score in scores if firsts[score["protocol"]] is score][:TILES]
    tiles = [(score_name(score), _figure(score["value"])) for score in chosen]
    if run.metrics():
        tiles += [
            (column(key).title, _figure(value)) for key, value in training_figures(run).items()
        ]
    return tiles


def _figure(value: float) -> str:
    """The value with two decimals from 10 on (percentages), with three below."""
    digits = 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}".replace("-", "−")


def _compared(row: Row) -> dict[str, Any]:
    """A line of the table: mean ± std, the difference with its interval, the verdict."""
    text = RowText.of(row)
    figures = {"value": text.value, "difference": text.difference, "interval": text.interval}
    return {
        "name": setting_name(row.setting),
        "verdict": text.verdict,
        "detectable": text.detectable,
        **{key: each.replace("-", "−") for key, each in figures.items()},
    }


def _picture(picture: Picture) -> dict[str, Any]:
    """What the map's script and the gallery need."""
    found, looks = picture.map, picture.looks
    sheet = looks.sheet
    places = (found.points * GRID).round().astype(int)
    data = {
        "x": places[:, 0].tolist(),
        "y": places[:, 1].tolist(),
        "names": looks.captions,
        "labels": found.labels,
        "classes": found.classes,
        "near": found.neighbours.tolist(),
        "cosines": [[round(c, 3) for c in row] for row in found.similarities.tolist()],
        "sheet": None if sheet is None else {"columns": sheet.columns, "rows": sheet.rows},
        "drawings": looks.packed_drawings(),
        "colours": len(PALETTE),
        "marks": len(MARKERS),
    }
    return {
        "map": found,
        "looks": looks,
        "data": data,
        "sheet": sheet,
        "thumb_style": _thumb_style(looks),
        "queries": gallery(found),
        "agreement": agreement(found),
        "geometry": _geometry(found),
        "measured_on": BACKBONE,
    }


def _thumb_style(looks: Looks) -> list[str]:
    """The position of each thumbnail on the sheet, as CSS percentages, valid at any size."""
    sheet = looks.sheet
    if sheet is None:
        return []
    across, down = max(1, sheet.columns - 1), max(1, sheet.rows - 1)
    places = (divmod(number, sheet.columns) for number in range(len(looks.captions)))
    return [f"{100 * x / across:.4f}% {100 * y / down:.4f}%" for y, x in places]


def _geometry(found: EmbeddingMap) -> list[tuple[str, str]]:
    """Uniformity, effective rank and, where a class has two members, tolerance."""
    import torch

    vectors = found.vectors
    values = [
        ("uniformity", f"{geometry.uniformity(vectors).item():.2f}"),
        ("effective rank", f"{geometry.effective_rank(vectors).item():.1f} of {vectors.shape[1]}"),
    ]
    if found.labels is not None and len(found.classes) < len(found):
        tolerance = geometry.tolerance(vectors, torch.tensor(found.labels)).item()
        values.append(("tolerance", f"{tolerance:.2f}"))
    return [(name, value.replace("-", "−")) for name, value in values]


def _diagnosis(run: Run) -> Diagnosis | None:
    """The result of `macl diagnose` in the run's folder."""
    file = run.folder / "diagnosis.json"
    if not file.is_file():
        return None
    try:
        return TypeAdapter(Diagnosis).validate_python(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{file} cannot be read ({reason}). Make it again with `macl diagnose {run.folder}`, "
            "or remove it."
        ) from error
