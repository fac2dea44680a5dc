"""The rows of a comparison: each setting and metric over seeds, its differences, and pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from macl.core.errors import UserError
from macl.experiments.compare import Cell, Setting, is_finished
from macl.experiments.controls import adaptive_setting
from macl.experiments.statistics import (
    Difference,
    Pooled,
    holm,
    mean_std,
    paired_difference,
    pooled_difference,
)
from macl.losses.spread import is_bin
from macl.probes.score import score_name
from macl.runs import Run

NO_METRICS = frozenset({"step", "epoch", "lr", "loss", "monitor"})
"""Columns of metrics.csv that are no figures of the training method."""

PREFERRED = ("alignment", "temperature", "gradient_scale", "effective_anchors")
"""Figures of contrastive training that come first, in this order, where a run has them."""

Tested = TypeVar("Tested", Difference, Pooled)


@dataclass(frozen=True)
class Within:
    """The spread of a score over its repetitions within a run, such as ten fine-tunings."""

    repetitions: int
    std: float
    """Sample standard deviation, averaged over runs."""


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
    """A score of the evaluation, or a figure of the training."""
    to_control: Difference | None = None
    """To the level control of this setting, where it was run (`macl compare --control level`)."""
    within: Within | None = None
    """The spread within each run, where its score is a mean over repetitions."""

    @property
    def has_verdict(self) -> bool:
        """Whether it is compared: more is better, and it is no second figure of the same score.

        Not of geometry, of figures of the training, and of "accuracy-plain".
        """
        second = self.metric.startswith("geometry") or self.metric.endswith("-plain")
        return self.kind == "score" and not second


@dataclass(frozen=True)
class PooledRow:
    """The difference of one label to the baseline, pooled over all other settings."""

    label: str
    """The value of the first varied key."""
    metric: str
    pooled: Pooled


def training_figures(run: Run) -> dict[str, float]:
    """The mean of each figure of the training method over the last epoch's rows of metrics.csv.

    Which figures there are depends on the method; contrastive ones have alignment, temperature,
    gradient scale and effective anchors. Empty where nothing was trained.
    """
    rows = run.metrics()
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    names = dict.fromkeys(
        name for row in last for name in row if name not in NO_METRICS and not is_bin(name)
    )
    ordered = [*(n for n in PREFERRED if n in names), *(n for n in names if n not in PREFERRED)]
    return {name: mean_std([row[name] for row in last if name in row])[0] for name in ordered}


def scores_of(run: Run) -> dict[str, float]:
    """The scores of a run by name."""
    return {score_name(score): score["value"] for score in run.results().get("scores", ())}


def repetitions_of(run: Run) -> dict[str, list[float]]:
    """The values behind each score of a run that is a mean over two repetitions or more."""
    found = {score_name(s): s["details"].get("values") for s in run.results().get("scores", ())}
    return {name: each for name, each in found.items() if isinstance(each, list) and len(each) > 1}


def _within(repeated: Sequence[Sequence[float]]) -> Within:
    spreads = [mean_std(each)[1] for each in repeated]
    return Within(len(repeated[0]), mean_std(spreads)[0])


def tabulate(cells: Sequence[Cell], metrics: Sequence[str] | None = None) -> list[Row]:
    """One row per setting and metric of the finished cells, each compared with its baseline.

    `metrics` like "knn top1" selects and orders them; by default all scores, then all figures of
    the training. Verdicts are corrected for the number of comparisons: see `correct`.
    """
    values: dict[tuple[Setting, str], dict[int, float]] = {}
    repeated: dict[tuple[Setting, str], list[list[float]]] = {}
    scored: set[str] = set()
    for cell in filter(is_finished, cells):
        run = Run(cell.folder)
        scores = scores_of(run)
        scored |= set(scores)
        for metric, value in (training_figures(run) | scores).items():
            values.setdefault((cell.setting, metric), {})[cell.seed] = value
        for metric, each in repetitions_of(run).items():
            repeated.setdefault((cell.setting, metric), []).append(each)
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    known = sorted(dict.fromkeys(metric for _, metric in values), key=lambda m: m not in scored)
    names = list(metrics or known)
    missing = [name for name in names if name not in known]
    if missing:
        raise UserError(f"no run has the metric {missing[0]!r}; there are: {', '.join(known)}.")
    within = {place: _within(each) for place, each in repeated.items()}
    rows = _rows(settings, names, values, scored)
    return correct(
        [replace(row, within=within.get((tuple(row.setting.items()), row.metric))) for row in rows]
    )


def baseline_of(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The first value of the first key, all else equal; None if that is `setting` or not there."""
    base = settings[0][:1] + setting[1:]
    return base if base != setting and base in settings else None


def correct(rows: Sequence[Row]) -> list[Row]:
    """Rows with verdicts corrected by Holm over all their comparisons of scores.

    One family: every difference to a baseline or to a level control that has a p value and gets a
    verdict. What was corrected before is corrected anew.
    """
    tested = [
        found
        for row in rows
        if row.has_verdict
        for found in (row.difference, row.to_control)
        if found is not None
    ]
    adjusted = iter(adjust(tested))
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


def adjust(tested: Sequence[Tested]) -> list[Tested]:
    """Differences with Holm's p values, as one family; those without a p value stay as they are."""
    family = [found for found in tested if found.p == found.p]  # not NaN
    adjusted = iter(holm([found.p for found in family]))
    return [
        replace(found, adjusted=next(adjusted), comparisons=len(family))
        if found.p == found.p
        else found
        for found in tested
    ]


def pool(rows: Sequence[Row]) -> list[PooledRow]:
    """For each label of the first varied key, its difference to the baseline over all settings.

    A pool needs two settings or more that differ in the other keys. See `pooled_difference` for the
    interval; verdicts are corrected by Holm over all pools.
    """
    by_seed = {
        (tuple(row.setting.items()), row.metric): dict(zip(row.seeds, row.values, strict=True))
        for row in rows
    }
    settings = list(dict.fromkeys(setting for setting, _ in by_seed))
    found: dict[tuple[str, str], list[list[float]]] = {}
    for (setting, metric), own in by_seed.items():
        base = by_seed.get((baseline_of(setting, settings) or (), metric))
        if base is not None and setting:
            shared = [seed for seed in own if seed in base]
            differences = [own[seed] - base[seed] for seed in shared]
            if differences:
                found.setdefault((setting[0][1], metric), []).append(differences)
    graded = {row.metric for row in rows if row.has_verdict}
    several = {
        place: pooled_difference(each)
        for place, each in found.items()
        if len(each) > 1 and place[1] in graded
    }
    adjusted = adjust(list(several.values()))
    return [PooledRow(*place, pooled) for place, pooled in zip(several, adjusted, strict=True)]


def _rows(
    settings: list[Setting],
    names: list[str],
    values: Mapping[tuple[Setting, str], dict[int, float]],
    scored: set[str],
) -> Iterator[Row]:
    controls = {adaptive_setting(setting): setting for setting in settings}
    for setting in settings:
        base, control = baseline_of(setting, settings), controls.get(setting)
        for name in names:
            own = dict(sorted(values.get((setting, name), {}).items()))
            if not own:  # evaluated by other protocols than the rest
                continue
            mean, std = mean_std([*own.values()])
            yield Row(
                dict(setting),
                name,
                [*own],
                [*own.values()],
                mean,
                std,
                None if base is None else _difference(own, values.get((base, name), {})),
                "score" if name in scored else "training",
                None if control is None else _difference(own, values.get((control, name), {})),
            )


def _difference(own: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    return paired_difference([own[seed] for seed in shared], [other[seed] for seed in shared])
