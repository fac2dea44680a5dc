"""`temperature: auto` beside eight fixed τ: the regret of one run against a search.

    python benchmarks/auto.py --data DATA --work FOLDER --minutes 60 [--tasks digits,cifar10,mutag]
    python benchmarks/auto.py --write

DATA holds cifar10/train.npz and test.npz, and tu/MUTAG. Finished trials are lines of
docs/results/data/auto.jsonl and are never run again. The page's table is made from the lines: for
each task and loss the best fixed τ over its seeds (chosen on the test score, which favors the
search), and how far each rule lies below it. Set PYTHONPATH to a checkout that does not change
while the study runs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from study import Lines, Trial, run_trials

ROOT = Path(__file__).parents[1]
LINES, PAGE = ROOT / "docs/results/data/auto.jsonl", ROOT / "docs/results/auto.md"
BEGIN, END = "<!-- regret:begin -->", "<!-- regret:end -->"

FIXED = (0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.25, 0.5)
RULES: dict[str, Any] = {
    "auto": "auto",
    "auto from 0.5": {"name": "auto", "temperature": 0.5},
    "learned": {"name": "learned"},
}
LOSSES = {"NT-Xent": "nt-xent", "DCL": "dcl"}
KL_SHARES = {"NT-Xent": 0.44, "DCL": 0.53}


class Task(NamedTuple):
    """A recipe with its sizes, the score, and how many seeds."""

    recipe: str
    overrides: dict[str, Any]
    score: str
    seeds: int


PROBE = {"monitor_every": 0, "evaluation.protocols": ["knn"]}
TASKS = {
    "digits": Task("digits", {**PROBE, "epochs": 15}, "knn top1", 5),
    "cifar10": Task("cifar10-small", {**PROBE, "epochs": 15, "data.limit": 5000}, "knn top1", 3),
    "mutag": Task("graphcl-mutag", {}, "svm accuracy", 5),
}


def places(task: str, data: Path) -> dict[str, str]:
    """Overrides that say where a task's data lies."""
    if task == "cifar10":
        folder = data / "cifar10"
        return {"data.path": str(folder / "train.npz"), "data.test_path": str(folder / "test.npz")}
    return {"data.path": str(data / "tu")} if task == "mutag" else {}


def trials(task: str, data: Path) -> Iterator[Trial]:
    """Seed by seed, so that a study that stops has whole seeds."""
    own = TASKS[task]
    settings = {**{f"τ = {tau:g}": tau for tau in FIXED}, **RULES}
    for seed, (loss, name), (label, temperature) in product(
        range(own.seeds), LOSSES.items(), settings.items()
    ):
        if label == "learned" and loss == "DCL":
            continue  # runs to its lower bound
        if isinstance(temperature, dict) and temperature["name"] == "auto":
            temperature = {**temperature, "kl_share": KL_SHARES[loss]}
        section = {"name": name, "temperature": temperature}
        values = {**own.overrides, **places(task, data), "loss": section}
        yield Trial(f"{task}, {loss}", label, seed, own.recipe, values)


def table(lines: Lines) -> str:
    """Scores and regrets of every task and loss, over the seeds that all settings have."""
    rows = [
        "| task, loss | seeds | best fixed τ | worst fixed | τ = 0.1 | auto (regret; level of τ) "
        "| auto from 0.5 | learned |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    regrets: dict[str, list[float]] = {"auto": [], "auto from 0.5": [], "τ = 0.1": []}
    for task, loss in product(TASKS, LOSSES):
        regime = f"{task}, {loss}"
        labels = [f"τ = {tau:g}" for tau in FIXED]
        values = {
            label: lines.values(regime, label, TASKS[task].score) for label in [*labels, *RULES]
        }
        needed = [values[label] for label in [*labels, "auto", "auto from 0.5"]]
        seeds = set.intersection(*(set(own) for own in needed))
        if not seeds:
            continue
        means = {
            label: statistics.fmean(own[seed] for seed in seeds)
            for label, own in values.items()
            if seeds <= set(own)
        }
        best = max(labels, key=means.__getitem__)
        worst = min(labels, key=means.__getitem__)
        for label, all_of in regrets.items():
            all_of.append(means[best] - means[label])
        ends = lines.values(regime, "auto", "temperature")
        end = statistics.fmean(ends[seed] for seed in seeds)
        shown = {
            label: f"{means[label]:.2f} ({means[best] - means[label]:.2f})"
            for label in ("τ = 0.1", "auto", "auto from 0.5", "learned")
            if label in means
        }
        auto = shown["auto"].replace(")", f"; {end:.3f})")
        rows.append(
            f"| {regime} | {len(seeds)} | {means[best]:.2f} ({best}) "
            f"| {means[worst]:.2f} ({worst}) | {shown['τ = 0.1']} | {auto} "
            f"| {shown['auto from 0.5']} | {shown.get('learned', '–')} |"
        )
    summary = ", ".join(
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
    parser.add_argument("--tasks", default="digits,cifar10,mutag")
    parser.add_argument("--write", action="store_true", help="make the page's table again")
    given = parser.parse_args()
    lines = Lines(given.lines)
    if given.write:
        write(lines)
        return
    for task in given.tasks.split(","):
        if task != "digits" and given.data is None:
            raise SystemExit(f"{task} needs --data.")
        run_trials(trials(task, given.data), lines, given.work, given.minutes)


if __name__ == "__main__":
    main()
