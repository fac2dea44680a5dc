"""The page: one HTML file that needs no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from pydantic import TypeAdapter

import macl
from macl import geometry
from macl.core.errors import UserError
from macl.diagnosis import Diagnosis
from macl.experiments.rows import RANGE, Row, scores_of, training_figures
from macl.experiments.tables import RowText, correction
from macl.probes.score import score_name
from macl.recipes import Recipe, dump, flatten, plain
from macl.reporting.charts import Curves, Histogram, setting_name
from macl.reporting.comparison import Comparison
from macl.reporting.curves import heading_of
from macl.reporting.items import Looks
from macl.reporting.map import MARKERS, EmbeddingMap
from macl.reporting.neighbors import Query, gallery
from macl.reporting.templates import PALETTE, asset, environment, figure, shown, style_of
from macl.runs import Run

Charts = Sequence[Curves | Histogram]

GRID = 4095
"""Positions on the map are whole numbers up to this: finer than any screen."""

TILES = 3
"""Scores at the head of the page, the first of each protocol."""


@dataclass(frozen=True)
class Picture:
    """The map of a run and the presentation of its items."""

    map: EmbeddingMap
    looks: Looks
    crossing: Mapping[str, Any] | None = None
    """How the two sides of pairs find each other, where items have another side."""

    @property
    def data(self) -> dict[str, Any]:
        """What the map's script reads."""
        places = (self.map.points * GRID).round().astype(int)
        return {
            "x": places[:, 0].tolist(),
            "y": places[:, 1].tolist(),
            "names": self.looks.captions,
            "labels": self.map.labels,
            "classes": self.map.classes,
            "near": self.map.neighbors.tolist(),
            "cosines": [[round(c, 3) for c in row] for row in self.map.similarities.tolist()],
            "pictures": self.looks.packed_pictures(),
            "style": self.looks.style,
            "colors": len(PALETTE),
            "marks": len(MARKERS),
        }

    @property
    def queries(self) -> list[Query]:
        """Some items with their nearest neighbors."""
        return gallery(self.map)

    @property
    def geometry(self) -> list[tuple[str, str]]:
        """Uniformity, effective rank and, where a class has two members, tolerance."""
        vectors, labels = self.map.vectors, self.map.labels
        rank = geometry.effective_rank(vectors).item()
        values = [
            ("uniformity", f"{geometry.uniformity(vectors).item():.2f}"),
            ("effective rank", f"{rank:.1f} of {vectors.shape[1]}"),
        ]
        if labels is not None and len(self.map.classes) < len(labels):
            tolerance = geometry.tolerance(vectors, torch.tensor(labels)).item()
            values.append(("tolerance", f"{tolerance:.2f}"))
        return [(name, value.replace("-", "−")) for name, value in values]


def run_page(
    run: Run, charts: Charts, picture: Picture | None, missing: str, paths: bool = False
) -> str:
    """The page of a run; `missing` says why there is no map when there is none."""
    scores = run.results().get("scores", [])
    firsts = {score["protocol"]: score for score in reversed(scores)}
    chosen = [score for score in scores if firsts[score["protocol"]] is score][:TILES]
    tiles = [(score_name(score), figure(score["value"])) for score in chosen]
    tiles += [(heading_of(key).title, figure(v)) for key, v in training_figures(run).items()]
    return render(
        run,
        charts,
        paths,
        title=run.recipe.name,
        kind="Run",
        facts=recipe_facts(run.recipe),
        tiles=tiles,
        scores=scores,
        picture=picture,
        missing=missing,
        diagnosis=_diagnosis(run),
    )


def comparison_page(compared: Comparison, charts: Charts, paths: bool = False) -> str:
    """The page of a comparison: its scores with intervals, and its curves overlaid."""
    first = next(iter(compared.settings.values()))[0]
    seeds = max(map(len, compared.settings.values()))
    facts = [fact for fact in recipe_facts(first.recipe) if fact[0] not in ("seed", "loss")]
    return render(
        first,
        charts,
        paths,
        title=first.recipe.name,
        kind="Comparison",
        folder=compared.folder,
        facts=[("settings", str(len(compared.settings))), ("seeds", str(seeds)), *facts],
        comparison=[(dots, [_compared(row) for row in dots.rows]) for dots in compared.scores],
        correction=correction(compared.rows),
        names=list(compared.settings),
        side_by_side=_temperature_ranges(compared.settings),
    )


def runs_page(runs: Mapping[str, Run], charts: Charts, paths: bool = False) -> str:
    """The page of several runs: their scores side by side, and their curves in shared charts."""
    facts = [recipe_facts(run.recipe) for run in runs.values()]
    shared = [fact for fact in facts[0] if all(fact in others for others in facts)]
    scores = [{k: figure(v) for k, v in scores_of(run).items()} for run in runs.values()]
    recipes = [flatten(plain(run.recipe, paths=paths)) for run in runs.values()]
    values = _side_by_side([{key: str(v) for key, v in recipe.items()} for recipe in recipes])
    return render(
        next(iter(runs.values())),
        charts,
        paths,
        title=", ".join(dict.fromkeys(run.recipe.name for run in runs.values())),
        kind="Runs",
        facts=[("runs", str(len(runs))), *shared],
        side_by_side={
            "Scores": _side_by_side(scores),
            "What differs in the recipes": {k: v for k, v in values.items() if len({*v}) > 1},
            **_temperature_ranges({name: [run] for name, run in runs.items()}),
        },
        names=list(runs),
    )


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Name → its text in each column; empty where a column does not have it."""
    names = dict.fromkeys(name for texts in columns for name in texts)
    return {name: [texts.get(name, "") for texts in columns] for name in names}


def _temperature_ranges(settings: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, list[str]]]:
    """How far τ moved in the runs of each setting; empty where it moved in none."""
    figures = [[*map(training_figures, runs)] for runs in settings.values()]
    if not any(RANGE[0] in each for own in figures for each in own):
        return {}
    columns: list[dict[str, str]] = []
    for own in figures:
        taus = [each[key] for each in own for key in (*RANGE, "temperature") if key in each]
        columns.append({"lowest": shown(min(taus)), "highest": shown(max(taus))} if taus else {})
    return {"Range of τ in training": _side_by_side(columns)}


DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("tiles", "scores", "comparison", "names"), ()),
    **dict.fromkeys(("picture", "changes", "diagnosis"), None),
    **dict.fromkeys(("missing", "correction", "remark"), ""),
    "side_by_side": {},
}
"""What a kind of page does without."""


def render(run: Run, charts: Charts, paths: bool, **given: Any) -> str:
    """The page of `given` values of the template; `run` is the one whose recipe is shown.

    Without `paths`, it has the last part of each. The legend is that of `names` unless given.
    """
    recipe = run.recipe
    values = {**DEFAULTS, "folder": run.folder, **given}
    named = [(name, style_of(number)) for number, name in enumerate(values["names"])]
    values.setdefault("legend", named)
    if not paths:
        folder = values["folder"].absolute()
        known = [v for v in flatten(recipe.model_dump()).values() if isinstance(v, Path)]
        for path in sorted([folder, *known], key=lambda path: len(str(path)), reverse=True):
            values["missing"] = values["missing"].replace(str(path), path.name)
        values["missing"] = values["missing"].replace(str(Path.home()), "~")
        values["folder"] = folder.name
    script = asset("charts.js") + asset("map.js")
    # Only this script may run, and nothing may be fetched, whatever text the data contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment().get_template("template.html")
    return page.render(
        style=Markup(asset("style.css")),
        script=Markup(script),
        script_hash=digest,
        palette=PALETTE,
        charts=charts,
        description=recipe.description,
        recipe=dump(recipe, paths=paths),
        versions=f"macl {macl.__version__}, torch {version('torch')}",
        **values,
    )


def recipe_facts(recipe: Recipe) -> list[tuple[str, str]]:
    """The main settings, for the head of the page."""
    facts = {
        "modality": recipe.modality,
        "method": recipe.method.name,
        "loss": "none" if recipe.loss is None else recipe.loss.name,
        "encoder": getattr(recipe.encoder, "name", None),
        "batch": f"{recipe.batch_size:,}",
        "epochs" if recipe.steps is None else "steps": f"{recipe.steps or recipe.epochs:,}",
        "seed": recipe.seed,
    }
    return [(key, str(value)) for key, value in facts.items() if value is not None]


def _compared(row: Row) -> dict[str, Any]:
    """A line of the table: mean ± std, the difference with its interval, the verdict."""
    texts = asdict(RowText.of(row))
    for key in ("value", "difference", "interval"):
        texts[key] = texts[key].replace("-", "−")
    return {"name": setting_name(row.setting), **texts}


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
