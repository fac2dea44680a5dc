"""Adapt a pretrained encoder to unlabeled data; judge it before and after on held-out items."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from macl import modalities, recipes
from macl.core.errors import UserError
from macl.core.files import read_json, write_text
from macl.core.section import absolute
from macl.experiments import SUMMARY, judgement
from macl.experiments.judgement import FEWEST, Task, Vectors, write_vectors
from macl.experiments.tables import markdown_table
from macl.experiments.verdict import Verdict, labels_needed
from macl.modalities.protocols import Dataset
from macl.recipes import Overrides, Recipe
from macl.runs import Run
from macl.runs.elsewhere import recognize
from macl.runs.export import export_run
from macl.training.fit import HERE, Compute, train

ORIGINAL = "original"
ITEMS = "vectors/items.json"
"""The judged items: their names, their places in the data and their labels."""
BANK = 5000
"""Training items, at most, whose labels the probes use."""


@dataclass(frozen=True)
class Adapted:
    """What became of an encoder; adapt.json holds the same."""

    folder: Path
    before: dict[str, float]
    after: dict[str, float]
    """Means over the seeds."""
    verdict: Verdict
    kept: str
    """"adapted" or "original"."""
    labels_needed: dict[str, int]
    """Difference in points → labeled held-out items that would show it."""

    @property
    def encoder(self) -> Path:
        """The folder of the chosen encoder, in the format that it came in."""
        return self.folder / "encoder"


def adapt(
    encoder: str,
    data: Path,
    out: Path,
    *,
    modality: str | None = None,
    weights: Path | None = None,
    labels: Path | None = None,
    seeds: int = 3,
    holdout: float = 0.2,
    overrides: Overrides | None = None,
    transform: Callable[..., Any] | None = None,
    callbacks: Sequence[Callback] = (),
    compute: Compute = HERE,
) -> Adapted:
    """Adapt once per seed, judge on held-out items, export what is kept; see `macl.adapt`."""
    columns = None if labels is None else judgement.read_labels(labels)
    recipe, build = _recipe(encoder, data, modality, weights, overrides or {})
    kind = modalities.get(recipe.modality)
    try:
        dataset: Any = kind.load(recipe.data, "train")
    except UserError as error:
        if modality is not None or Path(encoder).exists():
            raise
        raise UserError(
            f"{error} {encoder} is taken for an encoder of {kind.name}; `modality=` says otherwise."
        ) from error
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    count = round(holdout * len(dataset))
    if count < FEWEST or len(dataset) - count < recipe.batch_size:
        raise UserError(
            f"{data} has {len(dataset):,} items: too few to hold out {FEWEST} and to fill one "
            f"batch of {recipe.batch_size}. Give more data or a smaller batch_size."
        )
    test, rest = dataset.select(order[:count]), dataset.select(order[count:])
    bank = rest.select(torch.arange(min(BANK, len(rest))))
    tasks = (
        judgement.own_task(bank, test)
        if columns is None
        else judgement.tasks_of(columns, bank.names, test.names)
    )
    items = {"bank": [*bank.names], "test": [*test.names], "held_out": order[:count].tolist()}
    stored = read_json(out / ITEMS)
    if not stored:
        write_text(out / ITEMS, json.dumps(items))
    elif not items.items() <= stored.items():
        raise UserError(
            f"{out} was begun with other items or with another `holdout=`; choose another folder."
        )
    original = Run(out / "runs" / ORIGINAL)
    untrained = recipe.model_copy(update={"epochs": 0, "steps": None})
    if original.is_finished and original.recipe != untrained:
        raise UserError(f"{out} was begun with other settings; choose another folder.")
    if not original.is_finished:
        original = Run.create(original.folder, untrained)
        kind.save_encoder(build(recipe, rest).eval(), original.folder, {})
    write_vectors(original, out, bank, test)
    for seed in range(seeds):
        folder = out / "runs" / f"seed-{seed}"
        run = train(
            recipe.model_copy(update={"seed": seed}),
            folder,
            resume=(folder / "recipe.yaml").is_file(),
            compute=compute,
            callbacks=callbacks,
            dataset=rest,
            encoder=build(recipe, rest),
            transform=transform,
        )
        write_vectors(run, out, bank, test)
    facing = kind.facing(test, range(len(test)))
    source = encoder if Path(encoder).suffix or ":" in encoder else Path(encoder).name
    about = {"encoder": source, "holdout": holdout}
    return _finish(out, seeds, tasks, None if facing is None else facing[1], about)


def rejudge(out: Path, labels: Path) -> Adapted:
    """Judge a finished adaptation by labels that came later."""
    columns = judgement.read_labels(labels)
    for run in (ORIGINAL, "seed-0"):
        Run.open(out / "runs" / run)  # refuses what a stranger's folder would import
    try:
        summary = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
        seeds = int(summary["verdict"]["seeds"])
        about = {key: summary[key] for key in ("encoder", "holdout")}
        items = read_json(out / ITEMS)
        bank, test = ([*map(str, items[part])] for part in ("bank", "test"))
        return _finish(out, seeds, judgement.tasks_of(columns, bank, test), None, about)
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{out} is not a finished adaptation: {error!r}. Adapt again.") from error


def _recipe(
    name: str, data: Path, modality: str | None, weights: Path | None, overrides: Overrides
) -> tuple[Recipe, Callable[[Recipe, Dataset], nn.Module]]:
    """The recipe of the encoder's modality with these data, and what makes an encoder."""
    run = Run.open(Path(name)) if (Path(name) / "recipe.yaml").is_file() else None
    start: Overrides = {}
    if run is not None:  # the recipe for adapting, with the views and the encoder of the run
        kind, stored = run.modality, run.recipe.model_dump(mode="json")
        values = recipes.read(kind.adapt_recipe) if kind.adapt_recipe else stored
        tuning = {k: v for k, v in values.get("encoder", {}).items() if k == "batch_norm"}
        values |= {"views": stored["views"], "encoder": {**stored["encoder"], **tuning}}
    else:
        kind = modalities.get(modality) if modality is not None else recognize(name)
        if kind.adapt_recipe is None:
            raise UserError(f"{kind.name}: adapt an earlier run, and give its folder.")
        values, start = recipes.read(kind.adapt_recipe), kind.start_from(name, weights)

    def build(recipe: Recipe, dataset: Dataset) -> nn.Module:
        if run is not None:
            return Run.open(run.folder).encoder
        return kind.build_encoder(recipe.encoder, dataset)

    path = kind.data_overrides(absolute(data))
    if "data.path" not in path:
        raise UserError(
            f"{data} holds tasks to evaluate on, not data to adapt to: give your items, as a file "
            "of texts or a folder of images."
        )
    return kind.settle(recipes.resolve(values, path, start, overrides)), build


def _finish(
    out: Path, seeds: int, tasks: Sequence[Task], matches: Tensor | None, about: Mapping[str, Any]
) -> Adapted:
    """Judge, choose, export, and write adapt.json, which the page follows."""
    original, *adapted = (
        Vectors.read(out, name) for name in (ORIGINAL, *(f"seed-{seed}" for seed in range(seeds)))
    )
    verdict, figures = judgement.judgement(original, adapted, tasks, matches)
    kept = "adapted" if verdict.result == "better" else ORIGINAL
    # The first seed, settled beforehand: choosing by the held-out items would favor the adapted.
    chosen = Run(out / "runs" / ("seed-0" if kept == "adapted" else ORIGINAL))
    layouts = ["huggingface"] if hasattr(chosen.encoder, "clip_config") else []
    shutil.rmtree(out / "encoder", ignore_errors=True)
    results = _results(verdict, figures, kept)
    export_run(chosen, out / "encoder", onnx=False, layouts=layouts, results=results)
    needed = labels_needed(figures["neighbors changed"])
    document = {
        **about,
        **figures,
        "verdict": {k: v if v == v else None for k, v in asdict(verdict).items()},  # no NaN
        "kept": kept,
        "labels_needed": needed,
        "judged": {"bank": len(original.bank), "held out": len(original.test)},
    }
    truth = tasks[0][1] if tasks else [frozenset[str]()] * len(original.test)
    labels = [";".join(sorted(each)) for each in truth]
    write_text(out / ITEMS, json.dumps({**read_json(out / ITEMS), "labels": labels}))
    write_text(out / SUMMARY, json.dumps(document, indent=2) + "\n")
    return Adapted(out, figures["before"], figures["after"], verdict, kept, needed)


def _results(verdict: Verdict, figures: Mapping[str, Any], kept: str) -> str:
    """What the model card says of both judgements, in Markdown."""
    after = figures["after"]
    rows = [[k, f"{v:.2f}", f"{after[k]:.2f}"] for k, v in figures["before"].items()]
    shown = f"Difference {verdict.figures}." if verdict.items else f"Not judged: {verdict.reason}."
    return (
        f"Judged on held-out items before and after it was adapted: **{verdict.result}**. {shown} "
        f"This folder holds the {kept} encoder.\n\n"
        f"{markdown_table(['measure', 'before', 'after'], rows)}"
    )
