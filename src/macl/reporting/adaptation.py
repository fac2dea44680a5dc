"""The page of an adaptation: held-out items before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from macl.core.files import atomic_write, read_json
from macl.experiments import PAGE, SUMMARY
from macl.experiments.adapt import ITEMS, ORIGINAL
from macl.experiments.judgement import Vectors
from macl.reporting.curves import training_curves
from macl.reporting.items import Looks, looks
from macl.reporting.map import choose_projection, lay_out
from macl.reporting.neighbors import evenly_spread
from macl.reporting.page import recipe_facts, render
from macl.reporting.templates import drawn, figure, style_of
from macl.runs import Run

POINTS = 1000
"""Items on the maps, at most."""
SIDES = ("before", "after (seed 0)")
QUERIES, SHOWN = 8, 4
"""Items whose neighbors changed, and neighbors of each."""


def write_adaptation(folder: Path) -> Path:
    """Write report.html into the folder of a finished adaptation."""
    summary = read_json(folder / SUMMARY)
    runs = [Run.open(folder / "runs" / f"seed-{n}") for n in range(len(summary["seeds"]))]
    vectors = [Vectors.read(folder, name) for name in (ORIGINAL, "seed-0")]
    share = summary["neighbors changed"]
    changes, shown = _changes(folder, runs[0], vectors, share)
    verdict = summary["verdict"]
    tiles = [("verdict", verdict["result"]), ("kept", summary["kept"])]
    if verdict["items"]:
        interval = f"{_signed(verdict['low'])} to {_signed(verdict['high'])}"
        tiles += [
            ("difference in points", _signed(verdict["difference"])),
            ("99% interval", interval),
            ("smallest detectable difference", figure(verdict["detectable"])),
        ]
    rows = {k: _row(v, summary["after"][k]) for k, v in summary["before"].items()}
    classes = {
        f"{name} ({each['items']})": _row(each["before"], each["after"])
        for name, each in summary["classes"].items()
    }
    named = {f"seed {n}": [run] for n, run in enumerate(runs)}
    page = render(
        runs[0],
        training_curves(named),
        paths=False,
        title=summary["encoder"],
        kind="Adaptation",
        folder=folder,
        facts=[fact for fact in recipe_facts(runs[0].recipe) if fact[0] not in ("seed", "encoder")],
        tiles=tiles,
        remark=f"{verdict['result']}: {verdict['reason']}.".capitalize(),
        side_by_side={"Held-out items": rows, **({"Classes (items)": classes} if classes else {})},
        names=["before", "after", "change"],
        legend=[(name, style_of(number)) for number, name in enumerate(named)],
        picture={"looks": shown},
        changes=changes,
    )
    target = folder / PAGE
    atomic_write(target, lambda file: file.write(page.encode()))
    return target


def _row(before: float, after: float) -> list[str]:
    return [figure(before), figure(after), _signed(after - before)]


def _signed(value: float) -> str:
    text = figure(abs(value))
    sign = "" if float(text) == 0 else "+" if value > 0 else "−"
    return f"{sign}{text}"


def _changes(
    folder: Path, run: Run, vectors: Sequence[Vectors], share: float
) -> tuple[dict[str, Any], Looks]:
    """Both maps, and items whose nearest neighbor changed; numbers are those of the looks."""
    items = read_json(folder / ITEMS)
    labels = items["labels"]
    near = [each.neighbors(SHOWN) for each in vectors]
    sides = [*zip(SIDES, near, strict=True)]
    changed = (near[0][:, 0] != near[1][:, 0]).nonzero().squeeze(1).tolist()
    queries = [changed[i] for i in evenly_spread(len(changed), QUERIES)]
    wanted = [i for q in queries for i in (q, *near[0][q].tolist(), *near[1][q].tolist())]
    number = {item: place for place, item in enumerate(dict.fromkeys(wanted or [0]))}
    dataset = run.modality.load(run.recipe.data, "train")
    shown = looks(run.modality, dataset, [int(items["held_out"][i]) for i in number])
    kinds = sorted({label for label in labels if label})
    some = list(range(0, len(labels), -(-len(labels) // POINTS)))
    projection = choose_projection(len(some))
    styles = [style_of(kinds.index(labels[i])) if labels[i] else "cloud-item" for i in some]
    maps = [lay_out(F.normalize(each.test[some], dim=1), projection) for each in vectors]
    return {
        "maps": [
            (side, drawn("scatter", points=(points * 380 + 10).tolist(), styles=styles))
            for side, points in zip(SIDES, maps, strict=True)
        ],
        "projection": projection.value.upper(),
        "legend": [(name, style_of(n)) for n, name in enumerate(kinds)],
        "share": share,
        "neighbors": [
            (number[q], [(side, [number[i] for i in rows[q].tolist()]) for side, rows in sides])
            for q in queries
        ],
    }, shown
