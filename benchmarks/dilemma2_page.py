"""Write docs/results/dilemma2.md from the lines of the second study.

    python benchmarks/dilemma2_page.py

As docs/results/dilemma2-plan.md says, no score is looked at before all trainings of a hypothesis
are there: until then the page has their number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import dilemma2
from dilemma import STS
from dilemma2 import FALLING, FIXED, LEVELS, LINES, LOSSES, OPTIMIZERS, RISING
from macl.experiments.statistics import LEVEL, Difference, holm, paired_difference
from macl.experiments.tables import interval_text, markdown_table, signed
from study import Line, Lines
from study_tables import replace_part

PAGE = Path(__file__).parents[1] / "docs/results/dilemma2.md"
DEV = "sts STS-B spearman"
TEST = tuple(f"sts {task} spearman" for task in STS if task != "STS-B")
KNN = "knn top1"
ITEMS = 10_000
"""Test images of CIFAR-10: no spread of an accuracy is taken for less than one of them."""
SENTENCES = "sentences"
EASY, MOVING, LONG = "images, easy positives", "images, adaptivity", "images, length"
PRIMARY = {
    "P1": "DCL − InfoNCE on sentences, each at the τ that STS-B dev prefers",
    "P2": "InfoNCE at τ = 0.03 with the best of three optimizers − DCL at 0.03",
    "P3": "DCL with τ rising − falling, sentences: equal within ±0.5?",
    "P4": "DCL − NT-Xent on images with easy positives",
    "P5": "DCL − NT-Xent on images after 80 epochs",
}

Scores = dict[int, float]
"""By unit: an encoder with its sentences, or a seed."""


class Row(NamedTuple):
    """A comparison over units; primary tests have a name of the plan."""

    what: str
    difference: Difference
    test: str = ""


def test_mean(line: Line) -> float:
    """Mean of the six STS tasks other than STS-B, or kNN accuracy."""
    return line.scores[KNN] if KNN in line.scores else fmean(line.scores[name] for name in TEST)


def scores(
    lines: Lines, regime: str, label: str, metric: Callable[[Line], float] = test_mean
) -> Scores:
    """The scores of a label by unit."""
    return {
        each.seed: metric(each) for each in lines if (each.regime, each.label) == (regime, label)
    }


def chosen(lines: Lines, labels: Sequence[str]) -> Scores:
    """For each encoder the test score of the label with the best STS-B dev score."""
    dev = {
        label: scores(lines, SENTENCES, label, lambda line: line.scores[DEV]) for label in labels
    }
    own = {label: scores(lines, SENTENCES, label) for label in labels}
    units = set.intersection(*map(set, own.values()))
    return {
        unit: own[max(labels, key=lambda label: dev[label][unit])][unit] for unit in sorted(units)
    }


def row(what: str, one: Scores, other: Scores, test: str = "", items: int = 0) -> Row:
    """The paired difference over the units that both have."""
    units = sorted(one.keys() & other.keys())
    values, base = [one[unit] for unit in units], [other[unit] for unit in units]
    return Row(what, paired_difference(values, base, 100 / items if items else 0.0), test)


def reweighting(lines: Lines) -> list[Row]:
    """H1."""
    best = {name: chosen(lines, [f"{name}, τ = {tau:g}" for tau in LEVELS]) for name in LOSSES}
    rows = [
        row("DCL − InfoNCE, each at its own τ", best["DCL"], best["InfoNCE"], "P1"),
        row("SigLIP − InfoNCE, each at its own τ", best["SigLIP"], best["InfoNCE"]),
        row("SigLIP − DCL, each at its own τ", best["SigLIP"], best["DCL"]),
    ]
    for tau in LEVELS:
        own = [scores(lines, SENTENCES, f"{name}, τ = {tau:g}") for name in ("DCL", "InfoNCE")]
        rows.append(row(f"DCL − InfoNCE, both at τ = {tau:g}", *own))
    return rows


def artifact(lines: Lines) -> list[Row]:
    """H2."""
    plain, lowest = "InfoNCE, τ = 0.03", scores(lines, SENTENCES, "DCL, τ = 0.03")
    labels = {name: f"{plain}, {name}" for name in OPTIMIZERS}
    rows = [
        row("InfoNCE, the best of three − DCL", chosen(lines, [*labels.values()]), lowest, "P2")
    ]
    base = scores(lines, SENTENCES, plain)
    rows += [
        row(f"InfoNCE, {name} − InfoNCE", scores(lines, SENTENCES, label), base)
        for name, label in labels.items()
    ]
    return rows


def adaptivity(regime: str, items: int = 0) -> Callable[[Lines], list[Row]]:
    """H3, on sentences or images."""

    def rows(lines: Lines) -> list[Row]:
        own = {name: scores(lines, regime, f"DCL, {name}") for name in (RISING, FALLING, FIXED)}
        test = "P3" if regime == SENTENCES else ""
        return [
            row("τ rising − falling", own[RISING], own[FALLING], test, items),
            row("τ rising − fixed", own[RISING], own[FIXED], "", items),
            row("τ falling − fixed", own[FALLING], own[FIXED], "", items),
        ]

    return rows


def easy(lines: Lines) -> list[Row]:
    """H4."""
    labels = {line.label.partition(",")[0]: line.label for line in lines if line.regime == EASY}
    one, other = (scores(lines, EASY, labels[name]) for name in ("DCL", "NT-Xent"))
    return [row(f"{labels['DCL']} − NT-Xent", one, other, "P4", ITEMS)]


def length(lines: Lines) -> list[Row]:
    """H5."""
    base = scores(lines, LONG, "NT-Xent")
    tests = {"DCL": "P5", "MACL": ""}
    return [
        row(f"{name} − NT-Xent", scores(lines, LONG, name), base, test, ITEMS)
        for name, test in tests.items()
    ]


HYPOTHESES: dict[str, tuple[str, str, Callable[[Lines], list[Row]]]] = {
    "H1": ("H1", "reweighting, sentences", reweighting),
    "H2": ("H2", "artifact of the optimizer, sentences", artifact),
    "H3-sentences": ("H3", "adaptivity, sentences", adaptivity(SENTENCES)),
    "H4": ("H4", "images with easy positives", easy),
    "H3-images": ("H3", "adaptivity, images", adaptivity(MOVING, ITEMS)),
    "H5": ("H5", "training length, images", length),
}


def progress(part: str, lines: Lines) -> tuple[int, int]:
    """How many trainings of a hypothesis have a line, and how many there are."""
    own = [trial.key for trial in dilemma2.trials(part, Path(), Path(), lines)]
    planned = max(len(own), 21 if part == "H4" else 0)  # its pilot decides what follows
    return sum(key in lines.by_key for key in own), planned


def text(found: Row, corrected: dict[str, float]) -> list[str]:
    """The cells of a comparison. Only primary tests have a verdict, by their corrected p."""
    own = found.difference
    verdict = ""
    if found.test:
        p = corrected.get(found.test)
        fields = {"p": p} if found.test != "P3" else {"p": 1.0, "equal": p}
        verdict = "when all five are there" if p is None else replace(own, **fields).verdict
        verdict = f"{found.test}: {verdict}"
    interval = f"{signed(own.mean)} {interval_text(own)}".rstrip()
    return [found.what, interval, str(own.pairs), f"{own.detectable:.2f}", verdict]


def part_text(lines: Lines) -> str:
    """Progress of every hypothesis, and the tables of those that are complete."""
    done = {part: progress(part, lines) for part in HYPOTHESES}
    states = [
        [*HYPOTHESES[part][:2], str(have), str(planned)] for part, (have, planned) in done.items()
    ]
    blocks = [markdown_table(["", "question", "trainings done", "of"], states)]
    tables = {
        part: HYPOTHESES[part][2](lines)
        for part, (have, planned) in done.items()
        if have == planned
    }
    tests = {each.test: each.difference for rows in tables.values() for each in rows if each.test}
    raw = [found.equal if name == "P3" else found.p for name, found in tests.items()]
    whole = tests.keys() == PRIMARY.keys()
    corrected = dict(zip(tests, holm(raw), strict=True)) if whole else {}
    for part, rows in tables.items():
        name, question, _ = HYPOTHESES[part]
        head = ["", "difference, 95% interval", "units", "detectable", "primary test"]
        body = [text(each, corrected) for each in rows]
        blocks.append(f"## {name}: {question}\n\n{markdown_table(head, body)}")
    if whole:
        head = ["", "test", f"p, corrected by Holm ({100 * LEVEL:g}%)"]
        body = [[name, PRIMARY[name], f"{corrected[name]:.3g}"] for name in PRIMARY]
        blocks.append("## Primary tests\n\n" + markdown_table(head, body))
    return "\n\n".join(blocks)


def main() -> None:
    """Make the page's part again."""
    replace_part(PAGE, "study", part_text(Lines(LINES)))


if __name__ == "__main__":
    main()
