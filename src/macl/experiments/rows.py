"""The rows of a comparison: each setting and metric over seeds, its differences, and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from typing import Any, Literal

from macl.core.errors import UserError, nearest
from macl.experiments import statistics
from macl.experiments.compare import Cell, Setting, adaptive_setting, is_finished
from macl.experiments.statistics import Difference, mean_std
from macl.losses.output import is_bin
from macl.probes.score import score_name
from macl.runs import Run

NO_METRICS = frozenset({"step", "epoch", "lr", "loss", "monitor"})
"""Columns of metrics.csv that are not metrics of the training method."""

PREFERRED = ("alignment", "temperature", "gradient_scale", "effective_anchors")
"""Figures of contrastive training that come first, in this order, where a run has them."""

RANGE = ("temperature_lowest", "temperature_highest")
"""How far τ moved in a training."""


@dataclass(frozen=True)
class Row:
    """One setting and one metric over all seeds."""

    setting: dict[str, str]
    metric: str
    seeds: list[int]
    values: list[float]
    """By seed."""
    mean: float
    std: float
    difference: Difference | None
    """To the baseline: the first value of the first varied key, all else equal. None: there is no
    such score, or this row is the baseline."""
    kind: Literal["score", "training"] = "score"
    to_control: Difference | None = None
    """To the level control of this setting, where it was run (`control="level"`)."""
    within: tuple[int, float] | None = None
    """Where the score of a run is a mean over repetitions, such as ten fine-tunings: how many, and
    their sample standard deviation, averaged over runs."""

    @property
    def has_verdict(self) -> bool:
        """Whether it is compared: a score of which more is better and that repeats no other."""
        second = self.metric.startswith("geometry") or self.metric.endswith("-plain")
        return self.kind == "score" and not second

    @property
    def tested(self) -> list[Difference]:
        """Its differences that get a verdict."""
        both = (self.difference, self.to_control) if self.has_verdict else ()
        return [each for each in both if each is not None]


def training_figures(run: Run) -> dict[str, float]:
    """The mean of each metric of the training method over the last epoch's rows of metrics.csv.

    Where τ moved, its lowest and highest of the whole training are added.
    """
    rows = run.metrics()
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    names = dict.fromkeys([*PREFERRED, *(name for row in last for name in row)])
    columns = {name: [row[name] for row in last if name in row] for name in names}
    means = {
        name: mean_std(column)[0]
        for name, column in columns.items()
        if column and name not in NO_METRICS and not is_bin(name)
    }
    taus = [row["temperature"] for row in rows if "temperature" in row]
    if taus and max(taus) > 1.001 * min(taus):
        means |= dict(zip(RANGE, (min(taus), max(taus)), strict=True))
    return means


def scores_of(run: Run) -> dict[str, float]:
    """The scores of a run by name."""
    return {score_name(score): score["value"] for score in run.results().get("scores", ())}


def _resolution(score: Mapping[str, Any]) -> float:
    """What one test item changes in a score that is a percentage of n items: 100/n; 0: unknown."""
    if score["protocol"] == "geometry":
        return 0.0
    details = score.get("details", {})
    counts = (details[key] for key in ("n_test", "n", "items", "n_images") if key in details)
    return 100 / count if (count := next(counts, 0)) else 0.0


def tabulate(cells: Sequence[Cell], metrics: Sequence[str] | None = None) -> list[Row]:
    """One row per setting and metric of the finished cells, each compared with its baseline.

    `metrics` like "knn top1" selects and orders them; by default all scores, then all figures of
    the training. Verdicts are corrected for the number of comparisons: see `correct`.
    """
    values: dict[tuple[Setting | None, str], dict[int, float]] = {}
    repeated: dict[tuple[Setting, str], list[list[float]]] = {}
    resolution: dict[str, float] = {}
    for cell in filter(is_finished, cells):
        run = Run(cell.folder)
        for metric, value in (training_figures(run) | scores_of(run)).items():
            values.setdefault((cell.setting, metric), {})[cell.seed] = value
        for score in run.results()["scores"]:
            metric = score_name(score)
            resolution[metric] = _resolution(score) or resolution.get(metric, 0.0)
            each = score.get("details", {}).get("values")
            if isinstance(each, list) and len(each) > 1:
                repeated.setdefault((cell.setting, metric), []).append(each)
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    controls = {adaptive_setting(setting): setting for setting in settings}
    known = sorted(dict.fromkeys(metric for _, metric in values), key=lambda m: m not in resolution)
    names = list(metrics or known)
    if any(controls):  # a control says something if τ moved: show how far
        names += [name for name in RANGE if name in known and name not in names]
    rows = []
    for setting, name in product(settings, names):
        if name not in known:
            raise UserError(f"no run has the metric {name!r}.{nearest(name, known)}")
        own = dict(sorted(values.get((setting, name), {}).items()))
        if not own:  # evaluated by other protocols than the rest
            continue
        base, control = (
            _difference(own, values.get((other, name), {}), resolution.get(name, 0.0))
            for other in (baseline_of(setting, settings), controls.get(setting))
        )
        mean, std = mean_std([*own.values()])
        kind: Literal["score", "training"] = "score" if name in resolution else "training"
        runs = repeated.get((setting, name), [])
        inner = (len(runs[0]), mean_std([mean_std(r)[1] for r in runs])[0]) if runs else None
        rows.append(
            Row(dict(setting), name, [*own], [*own.values()], mean, std, base, kind, control, inner)
        )
    return correct(rows)


def _difference(
    own: Mapping[int, float], other: Mapping[int, float], resolution: float
) -> Difference | None:
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    values, base = [own[seed] for seed in shared], [other[seed] for seed in shared]
    return statistics.paired_difference(values, base, resolution)


def require_known_protocols(cells: Sequence[Cell], metrics: Sequence[str] | None) -> None:
    """`UserError` for a score in `metrics`, such as "knn top1", of a protocol that is not run."""
    for name in metrics or ():
        known = {p for cell in cells for p in cell.recipe["evaluation"].get("protocols", ())}
        known |= {"sts", "transfer"} if known else set()
        protocol, *rest = name.split()
        if known and rest and protocol not in known:
            raise UserError(f"no run has the metric {name!r}.{nearest(protocol, known)}")


def refuse_misspelled(cell: Cell, metrics: Sequence[str] | None) -> None:
    """`UserError` for a name in `metrics` that a finished run lacks but for its spelling."""
    run = Run(cell.folder)
    known = {*scores_of(run), *training_figures(run)}
    for name in metrics or ():
        if known and name not in known and get_close_matches(name, known, cutoff=0.75):
            raise UserError(f"no run has the metric {name!r}.{nearest(name, known)}")


def baseline_of(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The first value of the first key, all else equal; None if that is `setting` or not there."""
    base = settings[0][:1] + setting[1:]
    return base if base != setting and base in settings else None


def correct(rows: Sequence[Row]) -> list[Row]:
    """Rows with verdicts corrected anew by Holm; their `tested` differences are one family."""
    adjusted = iter(adjust([each for row in rows for each in row.tested]))
    return [
        replace(
            row,
            difference=row.difference and next(adjusted),
            to_control=row.to_control and next(adjusted),
        )
        if row.has_verdict
        else row
        for row in rows
    ]


def adjust(tested: Sequence[Difference]) -> list[Difference]:
    """Differences with Holm's p values, as one family; those without a p value stay as they are.

    Tests for equivalence are a family of their own, as they ask another question.
    """
    family = [each for each in tested if each.p == each.p]  # not NaN
    adjusted = iter(statistics.holm([each.p for each in family]))
    equal = iter(statistics.holm([each.equal for each in family]))
    return [
        replace(each, adjusted=next(adjusted), equal_adjusted=next(equal), comparisons=len(family))
        if each.p == each.p
        else each
        for each in tested
    ]


def pool(rows: Sequence[Row]) -> dict[tuple[str, str], Difference]:
    """(label of the first varied key, metric) → its difference to the baseline over all settings.

    A pool needs two settings or more that differ in the other keys. See `pooled_difference` for the
    interval; verdicts are corrected by Holm over all pools.
    """
    by_seed = {
        (tuple(row.setting.items()), row.metric): dict(zip(row.seeds, row.values, strict=True))
        for row in rows
        if row.has_verdict
    }
    settings = list(dict.fromkeys(tuple(row.setting.items()) for row in rows))
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for (setting, metric), own in by_seed.items():
        base = by_seed.get((baseline_of(setting, settings) or (), metric), {})
        differences = [own[seed] - base[seed] for seed in own if seed in base]
        if differences and setting:
            groups.setdefault((setting[0][1], metric), []).append(differences)
    several = {
        place: statistics.pooled_difference(each) for place, each in groups.items() if len(each) > 1
    }
    return dict(zip(several, adjust([*several.values()]), strict=True))
