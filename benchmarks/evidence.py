"""The numbers of README.md and docs/which.md that come from the studies' lines.

    python benchmarks/evidence.py

replaces the marked parts of both pages. tests/benchmarks/test_evidence.py makes them again from the
lines and compares.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import emoji
from dilemma import BASELINE, LEVEL, LINES, MACL, PLAIN, STS
from dilemma import DCL as DCL_LABEL
from macl.experiments.statistics import Difference, mean_std, pooled_difference
from macl.experiments.tables import interval_text, markdown_table, signed
from study import Line, Lines
from study_tables import paired, replace_part
from temperature_settings import TASKS, methods
from temperature_study import CONTROL, chosen, lines_of

ROOT = Path(__file__).parents[1]
README, WHICH = ROOT / "README.md", ROOT / "docs/which.md"
ADAPT = ROOT / "docs/results/data/adapt.jsonl"

DCL, INFO_NCE = "DCL (no W)", "InfoNCE"

Curve = dict[float, dict[int, float]]
"""Scores by τ, and at each τ by seed."""


def sts(line: Line) -> float:
    """The mean of the seven STS tasks."""
    return mean_std([line.scores[f"sts {task} spearman"] for task in STS])[0]


def sentence_curves() -> dict[str, Curve]:
    """InfoNCE and DCL at every fixed τ that either study ran on 20,000 sentences, by τ.

    A line that one study copied from the other has the same recipe and seed and counts once.
    """
    study, other = Lines(LINES), lines_of("sentences")
    taus = ("0.03", "0.05", "0.1")
    cells = [(study, f"sentences, τ = {tau}", BASELINE, INFO_NCE) for tau in taus]
    cells += [(study, f"sentences, τ = {tau}", DCL_LABEL, DCL) for tau in taus]
    cells += [(study, "sentences, τ = 0.05", PLAIN + LEVEL, INFO_NCE)]
    cells += [(study, "sentences, τ = 0.05", MACL + LEVEL, DCL)]
    known = methods(TASKS["sentences"])
    cells += [(other, "sentences", CONTROL.format(method), INFO_NCE) for method in known]
    found: dict[str, Curve] = {DCL: {}, INFO_NCE: {}}
    seen: set[tuple[str, int]] = set()
    for lines, regime, label, loss in cells:
        own = [line for line in lines if (line.regime, line.label) == (regime, label)]
        new = [line for line in own if (line.recipe, line.seed) not in seen]
        seen |= {(line.recipe, line.seed) for line in new}
        levels = [line.temperature for line in new if line.temperature is not None]
        if levels:
            tau = round(mean_std(levels)[0], 4)
            found[loss][tau] = {line.seed: sts(line) for line in new}
    return {loss: dict(sorted(curve.items())) for loss, curve in found.items()}


def best(curve: Curve) -> tuple[float, dict[int, float]]:
    """The τ with the highest mean, and its scores."""
    return max(curve.items(), key=lambda item: mean_std([*item[1].values()])[0])


def needed(found: Difference | None) -> Difference:
    """A difference that is there."""
    if found is None:
        raise SystemExit("two settings share no seed: the lines are not complete.")
    return found


def text(found: Difference) -> str:
    """ "+1.38 [+0.20, +2.57]"."""
    return f"{signed(found.mean)} {interval_text(found)}"


def dev_choice() -> dict[str, float]:
    """The τ of InfoNCE and of DCL that STS-B dev preferred, of three, after 8,000 sentences."""
    lines, known = lines_of("sentences"), methods(TASKS["sentences"])
    found = {name: chosen(lines, "sentences", known[own]) for name, own in LABELS.items()}
    return {name: setting["temperature"] for name, setting in found.items() if setting}


LABELS = {INFO_NCE: "InfoNCE", DCL: "DCL"}
"""Of the curves, in the temperature study."""


def sentence_rows() -> list[list[str]]:
    """DCL and InfoNCE on sentences: best against best, τ from dev, and each τ of both."""
    curves = sentence_curves()
    picked = {loss: best(curve) for loss, curve in curves.items()}
    dev = dev_choice()
    by_dev = {loss: (tau, curves[loss][tau]) for loss, tau in dev.items()}
    rows = []
    for title, both in (
        ("each at its best τ, picked on the test tasks", picked),
        ("each at the τ of 0.05, 0.1, 0.2 that STS-B dev preferred", by_dev),
        *(
            (f"both at τ = {tau:g}", {loss: (tau, curve[tau]) for loss, curve in curves.items()})
            for tau in (0.03, 0.05, 0.1)
        ),
    ):
        sides = [
            f"{mean_std([*both[loss][1].values()])[0]:.1f} (τ = {both[loss][0]:.2g})"
            for loss in (DCL, INFO_NCE)
        ]
        found = needed(paired(both[DCL][1], both[INFO_NCE][1]))
        rows.append([title, *sides, text(found), str(found.pairs)])
    return rows


def sentences_table() -> str:
    """DCL and InfoNCE on sentences, in every way that they were compared."""
    return markdown_table(HEADER, sentence_rows())


def readme_table() -> str:
    """The same, each at a τ of its own: at one τ for both the worse choice of it decides."""
    return markdown_table(HEADER, sentence_rows()[:2])


HEADER = ["DCL and InfoNCE on sentences", "DCL", "InfoNCE", "difference, 95% interval", "seeds"]


def beside() -> dict[str, dict[int, float]]:
    """What methods are set beside: InfoNCE at its best τ of the test tasks, DCL at that of dev."""
    curves, tau = sentence_curves(), dev_choice()[DCL]
    level, own = best(curves[INFO_NCE])
    return {f"to InfoNCE at τ = {level:.2g}": own, f"to DCL at τ = {tau:g}": curves[DCL][tau]}


def methods_table() -> str:
    """Temperature methods on sentences beside fixed τ."""
    rows = []
    for method in ("SigLIP", "FastCLIP v3", "DySTreSS", "MACL", "Cosine schedule", "Learned τ"):
        own = {line.seed: sts(line) for line in lines_of("sentences") if line.label == method}
        cells = [text(needed(paired(own, other))) for other in beside().values()]
        rows.append([method, f"{mean_std([*own.values()])[0]:.1f}", *cells])
    return markdown_table(["sentences, 3 seeds", "STS", *beside()], rows)


def emoji_rows() -> list[list[str]]:
    """Losses on emoji against a fixed τ: every score over the settings that stand alone."""
    lines = Lines(emoji.LINES)
    places = [
        emoji.regime(task, tower)
        for task, tower in itertools.product(emoji.TASKS, emoji.TEXTS)
        if tower != emoji.TUNED
    ]
    rows = []
    for label in (each for each in emoji.LOSSES if each != emoji.BASELINE):
        cells = []
        for way, depth in itertools.product(("image-to-text", "text-to-image"), (1, 5)):
            metric = f"retrieval {way} R@{depth}"
            gains = [differences(lines, place, label, metric) for place in places]
            pool = pooled_difference([gain for gain in gains if gain])
            cells.append(f"{signed(pool.mean)} {interval_text(pool)}")
        rows.append([label, *cells])
    return rows


def differences(lines: Lines, regime: str, label: str, metric: str) -> list[float]:
    """By seed, to the fixed τ."""
    own: Mapping[int, float] = lines.values(regime, label, metric)
    base = lines.values(regime, emoji.BASELINE, metric)
    return [own[seed] - base[seed] for seed in own if seed in base]


def emoji_table() -> str:
    """What the losses gained on emoji with captions."""
    header = ["emoji, to InfoNCE at τ = 0.1; 5 settings × 3 seeds", "image→text R@1", "R@5"]
    return markdown_table([*header, "text→image R@1", "R@5"], emoji_rows())


def adapt_line() -> str:
    """What adapting an ImageNet encoder to CIFAR-10 gave, before and after."""
    texts = ADAPT.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, texts) if row["study"] == "cifar10"]
    own = [row for row in rows if (row["loss"], row["tuning"]) == ("NT-Xent", "full")]
    before, after = ({row["seed"]: row[when]["kNN"] for row in own} for when in ("before", "after"))
    gain = needed(paired(after, before))
    first, last = (mean_std([*values.values()])[0] for values in (before, after))
    return (
        f"kNN accuracy **{first:.1f} before, {last:.1f} after, {signed(gain.mean, 1)} "
        f"[{signed(gain.low, 1)}, {signed(gain.high, 1)}]** (95% interval over {len(own)} seeds; "
        "[record](docs/results/adapt.md))."
    )


PARTS = {
    (README, "adapt"): adapt_line,
    (README, "evidence"): readme_table,
    (WHICH, "sentences"): sentences_table,
    (WHICH, "methods"): methods_table,
    (WHICH, "emoji"): emoji_table,
}
"""The marked parts of pages, and what makes them."""


def main() -> None:
    """Write the parts."""
    for (page, name), make in PARTS.items():
        replace_part(page, name, make())


if __name__ == "__main__":
    main()
