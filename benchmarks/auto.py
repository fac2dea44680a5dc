"""`temperature: auto` beside eight fixed τ: the regret of one run against a search.

    python benchmarks/auto.py --data DATA --work FOLDER --minutes 60 [--tasks digits,mutag]
    python benchmarks/auto.py --write

DATA is laid out by ../shared/data/prepare.py. Finished trials are lines of
docs/results/data/auto.jsonl and are never run again. The page's table is made from the lines: for
each task and loss the best fixed τ over its seeds (chosen on the test score, which favors the
search), and how far each rule lies below it. Set PYTHONPATH to a checkout that does not change
while the study runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import dilemma2
import emoji
from dilemma import STS
from macl.experiments.compare import Cell
from macl.experiments.running import run_cell
from study import Lines, Trial, run_trials

ROOT = Path(__file__).parents[1]
LINES, PAGE = ROOT / "docs/results/data/auto.jsonl", ROOT / "docs/results/auto.md"
BEGIN, END = "<!-- regret:begin -->", "<!-- regret:end -->"

FIXED = (0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.25, 0.5)
RULES: dict[str, Any] = {
    "auto": "auto",
    "auto from 0.5": {"name": "auto", "temperature": 0.5},
    "MACL's rule": "macl",
    "learned": {"name": "learned"},
}
LOSSES = {"NT-Xent": "nt-xent", "DCL": "dcl"}
KL_SHARES = {"NT-Xent": 0.44, "DCL": 0.53}
RANDOM = "a random τ of the eight"


class Task(NamedTuple):
    """A recipe with its sizes, the scores whose mean counts, and how many seeds."""

    recipe: str
    overrides: dict[str, Any]
    scores: tuple[str, ...]
    seeds: int
    pairs: Mapping[str, Any] | None = None
    """Keys of the loss section beside its name and temperature."""
    places: Callable[[Path, Path, int], Mapping[str, Any]] = lambda data, work, seed: {}
    """Overrides that say where the data lies, of the folders DATA and FOLDER and the seed."""
    prepare: Callable[[Trial, Path, Path], None] = lambda trial, work, data: None
    """Makes what a trial starts from, where it is not there."""
    execute: Callable[[Path, Cell], object] = lambda work, cell: run_cell(cell)


def cifar10(data: Path, work: Path, seed: int) -> dict[str, str]:
    """The two files of CIFAR-10."""
    folder = data / "cifar10"
    return {"data.path": str(folder / "train.npz"), "data.test_path": str(folder / "test.npz")}


def graphs(data: Path, work: Path, seed: int) -> dict[str, str]:
    """The folder of the TU sets."""
    return {"data.path": str(data / "tu")}


def sentences(data: Path, work: Path, seed: int) -> Mapping[str, Any]:
    """The encoder and the sentences that the seed has in dilemma2.py, and SentEval."""
    return dilemma2.sentence_trial(work, data, seed, "", {}).overrides


def captions(data: Path, work: Path, seed: int) -> dict[str, Any]:
    """The emoji's captions; both towers start from random weights."""
    return {**emoji.TEXTS[emoji.TINY], "data.path": str(data / "emoji" / "captions.csv")}


PROBE = {"monitor_every": 0, "evaluation.protocols": ["knn"]}
ONE_WAY = {"negatives": "cross", "symmetric": False}
TWO_WAYS = {"negatives": "cross", "symmetric": True}
IMAGES = {**PROBE, "epochs": 15, "data.limit": 5000}
ACCURACY, KNN = ("svm accuracy",), ("knn top1",)
STS_MEAN = tuple(f"sts {name} spearman" for name in STS if name != "STS-B")
BOTH_WAYS = (emoji.COMPARED, emoji.OTHER_WAY)
TASKS = {
    "digits": Task("digits", {**PROBE, "epochs": 15}, KNN, 5),
    "cifar10": Task("cifar10-small", IMAGES, KNN, 5, places=cifar10),
    "mutag": Task("graphcl-mutag", {}, ACCURACY, 10, ONE_WAY, graphs),
    "proteins": Task("graphcl-proteins", {}, ACCURACY, 10, ONE_WAY, graphs),
    "sentences": Task("simcse-bert", {}, STS_MEAN, 3, ONE_WAY, sentences, dilemma2.prepare),
    "emoji": Task(
        "clip-small", emoji.SHARED, BOTH_WAYS, 5, TWO_WAYS, captions, execute=emoji.execute
    ),
}


def trials(task: str, data: Path, work: Path = Path()) -> Iterator[Trial]:
    """Seed by seed, so that a study that stops has whole seeds."""
    own = TASKS[task]
    settings = {**{f"τ = {tau:g}": tau for tau in FIXED}, **RULES}
    for seed, (loss, name), (label, temperature) in product(
        range(own.seeds), LOSSES.items(), settings.items()
    ):
        if label == "learned" and loss == "DCL":
            continue  # runs to its lower bound
        section: dict[str, Any] = {"name": name, "temperature": temperature, **(own.pairs or {})}
        if temperature == "macl":  # at the same τ: with reweighting DCL, without InfoNCE
            section |= {"name": "macl", "temperature": 0.1, "reweight": loss == "DCL"}
        elif isinstance(temperature, dict) and temperature["name"] == "auto":
            section["temperature"] = {**temperature, "kl_share": KL_SHARES[loss]}
        values = {**own.overrides, **own.places(data, work, seed), "loss": section}
        yield Trial(f"{task}, {loss}", label, seed, own.recipe, values)


def scores(lines: Lines, task: str, loss: str, label: str) -> dict[int, float]:
    """The mean of the task's scores, by seed."""
    each = [lines.values(f"{task}, {loss}", label, name) for name in TASKS[task].scores]
    seeds = set.intersection(*map(set, each))
    return {seed: statistics.fmean(one[seed] for one in each) for seed in sorted(seeds)}


def table(lines: Lines) -> str:
    """Scores and regrets of every task and loss, over the seeds that all settings have."""
    rows = [
        "| task, loss | seeds | best fixed τ | worst fixed | τ = 0.1 | auto (regret; level of τ) "
        "| auto from 0.5 | MACL's rule | learned |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    fixed = [f"τ = {tau:g}" for tau in FIXED]
    compared = ("auto", "auto from 0.5", "τ = 0.1", "MACL's rule", RANDOM)
    regrets: dict[str, list[float]] = {label: [] for label in compared}
    for task, loss in product(TASKS, LOSSES):
        values = {label: scores(lines, task, loss, label) for label in [*fixed, *RULES]}
        seeds = set.intersection(*(set(values[label]) for label in [*fixed, *list(RULES)[:2]]))
        if not seeds:
            continue
        means = {
            label: statistics.fmean(own[seed] for seed in seeds)
            for label, own in values.items()
            if seeds <= set(own)
        }
        best = max(fixed, key=means.__getitem__)
        worst = min(fixed, key=means.__getitem__)
        means[RANDOM] = statistics.fmean(means[label] for label in fixed)
        for label, all_of in regrets.items():
            if label in means:
                all_of.append(means[best] - means[label])
        ends = lines.values(f"{task}, {loss}", "auto", "temperature")
        end = statistics.fmean(ends[seed] for seed in seeds)
        shown = {label: f"{mean:.2f} ({means[best] - mean:.2f})" for label, mean in means.items()}
        shown["auto"] = shown["auto"].replace(")", f"; {end:.3f})")
        own = [shown.get(label, "–") for label in ("τ = 0.1", *RULES)]
        rows.append(
            f"| {task}, {loss} | {len(seeds)} | {means[best]:.2f} ({best}) "
            f"| {means[worst]:.2f} ({worst}) | {' | '.join(own)} |"
        )
    summary = "; ".join(
        f"{label} {statistics.fmean(own):.2f} on average and {max(own):.2f} at worst"
        for label, own in regrets.items()
        if own
    )
    return "\n".join(rows) + (f"\n\nRegret in points: {summary}." if summary else "")


def write(lines: Lines, page: Path = PAGE) -> None:
    """Put the table of the lines into the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{table(lines)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/auto"))
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--write", action="store_true", help="make the page's table again")
    given = parser.parse_args()
    lines = Lines(given.lines)
    if given.write:
        write(lines)
        return
    work, end = given.work.resolve(), time.monotonic() + 60 * given.minutes
    for task in given.tasks.split(","):
        if task != "digits" and given.data is None:
            raise SystemExit(f"{task} needs --data.")
        for trial in trials(task, given.data, work):
            if trial.key not in lines.by_key and time.monotonic() < end:
                TASKS[task].prepare(trial, work, given.data)
            left = (end - time.monotonic()) / 60
            run_trials([trial], lines, work / "runs", left, partial(TASKS[task].execute, work))


if __name__ == "__main__":
    main()
