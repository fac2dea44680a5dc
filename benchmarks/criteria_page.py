"""docs/results/criteria.md: what label-free criteria are worth for choosing, from existing lines.

python benchmarks/criteria_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats

import emoji
from macl.experiments.statistics import mean_std
from macl.experiments.tables import markdown_table
from study import Line, Lines
from study_tables import replace_part
from temperature_settings import TASKS, control, methods
from temperature_study import CONTROL, VALIDATION, chosen, lines_of

PAGE = Path(__file__).parents[1] / "docs/results/criteria.md"

Settings = list[list[Line]]
"""The lines of each setting, by seed."""

CRITERIA = {
    "effective rank (RankMe)": ("geometry backbone effective-rank", 1),
    "uniformity of the backbone": ("geometry backbone uniformity", -1),
    "uniformity of images": ("geometry image uniformity", -1),
    "alignment of test pairs": ("geometry alignment", 1),
    "alignment in training": ("alignment", 1),
}
"""The figure of a line, and whether more (1) or less (−1) of it is called better."""


def groups() -> Iterator[tuple[str, str, str, Settings]]:
    """(task, what is chosen, score, settings) of every choice that the lines hold."""
    for task in ("digits", "cifar10"):
        lines, score = lines_of(task), TASKS[task].scores[0]
        known = methods(TASKS[task])
        for form, name in (("nt-xent", "NT-Xent"), ("info-nce", "InfoNCE")):
            yield task, f"{name}, τ", score, fixed(lines, task, form)
        free = [method for method, own in known.items() if not own.supervised]
        yield task, "method, at its own τ", score, [of(lines, task, method) for method in free]
        tried = sorted({line.label for line in lines if line.regime == VALIDATION.format(task)})
        own = [of(lines, VALIDATION.format(task), label) for label in tried]
        unlabeled = [each for each in own if json.loads(each[0].label)["name"] != "supcon"]
        yield task, "method and τ, one seed, validation", score, unlabeled
    lines = Lines(emoji.LINES)
    for task in emoji.TASKS:
        for tower in (each for each in emoji.TEXTS if each != emoji.TUNED):
            found = [of(lines, emoji.regime(task, tower), label) for label in emoji.LOSSES]
            if all(found):
                yield f"emoji, {task}: {tower}", "loss", emoji.COMPARED, found


def of(lines: Lines, regime: str, label: str) -> list[Line]:
    """The lines of one setting."""
    return [line for line in lines if (line.regime, line.label) == (regime, label)]


def fixed(lines: Lines, task: str, form: str) -> Settings:
    """One loss at each fixed τ that ran, each once."""
    known = methods(TASKS[task])
    labels = [next(iter(known))] if TASKS[task].reference == form else []
    for method, own in known.items():
        setting = chosen(lines, task, own)
        if setting is not None and control(setting, 1.0)["name"] == form:
            labels.append(CONTROL.format(method))
    by_recipe = {
        tuple(line.recipe for line in own): own
        for label in labels
        if (own := of(lines, task, label))
    }
    return list(by_recipe.values())


def mean_of(own: list[Line], name: str) -> float:
    """A figure averaged over seeds; NaN where the lines have none."""
    values = [both[name] for line in own if name in (both := line.training | line.scores)]
    return mean_std(values)[0] if values else float("nan")


def rows() -> Iterator[list[str]]:
    """A row per choice and criterion: rank correlation, and what choosing by it costs."""
    for task, what, score, settings in groups():
        scores = np.array([mean_of(own, score) for own in settings])
        for criterion, (name, sign) in CRITERIA.items():
            values = sign * np.array([mean_of(own, name) for own in settings])
            there = np.isfinite(values) & np.isfinite(scores)
            if there.sum() < 3:
                continue
            kept, judged = scores[there], values[there]
            rank = stats.spearmanr(judged, kept).statistic
            regret, random = kept.max() - kept[judged.argmax()], kept.max() - kept.mean()
            cells = [f"{rank:+.2f}", f"{regret:.2f}", f"{random:.2f}"]
            yield [task, what, str(len(kept)), criterion, *cells]


def table() -> str:
    """All rows."""
    header = [
        "task",
        "chosen among",
        "settings",
        "criterion",
        "Spearman",
        "regret",
        "random choice",
    ]
    return markdown_table(header, [*rows()])


def summary() -> str:
    """For each criterion, over all choices: mean rank correlation, mean and worst regret."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for *_, criterion, rank, regret, random in rows():
        found.setdefault(criterion, []).append((float(rank), float(regret), float(random)))
    body = []
    for criterion, own in found.items():
        ranks, regrets, randoms = (np.array(column) for column in zip(*own, strict=True))
        cells = [f"{ranks.mean():+.2f}", f"{regrets.mean():.2f}", f"{regrets.max():.2f}"]
        better = f"{(regrets < randoms).sum()} of {len(own)}"
        body.append([criterion, str(len(own)), *cells, f"{randoms.mean():.2f}", better])
    header = ["criterion", "choices", "mean Spearman", "mean regret", "worst", "of a random choice"]
    return markdown_table([*header, "better than random"], body)


def main() -> None:
    """Write the page's tables."""
    replace_part(PAGE, "summary", summary())
    replace_part(PAGE, "table", table())


if __name__ == "__main__":
    main()
