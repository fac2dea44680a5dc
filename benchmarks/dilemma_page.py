"""Make the tables and figures of docs/results/dilemma.md from the lines in docs/results/data.

    python benchmarks/dilemma_page.py

Image–text is the study of `benchmarks/emoji.py`, with its own file of lines. Also writes
src/macl/diagnosis/evidence.json, on which `macl diagnose` bases its advice.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy import stats

import emoji
import evidence
from dilemma import BASELINE, DCL, LINES, MACL, PLAIN, STS, Regime, regimes
from macl.experiments.rows import adjust
from macl.experiments.statistics import Difference, mean_std, pooled_difference
from macl.experiments.tables import interval_text, markdown_table, signed
from study import Line, Lines
from study_tables import Entry, corrected, difference_text, entries, replace_part

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/dilemma.md"
FIGURES = ROOT / "docs/figures"
EVIDENCE = ROOT / "src/macl/diagnosis/evidence.json"

EDGES = (0.0, 0.25, 0.5, 0.75, 1.01)
"""Bins of ESS in which gains are pooled for the diagnosis."""

FEWEST = 3
"""Seeds, and settings, from which on an interval over them says something."""

BLUE, ORANGE = "#0072B2", "#D55E00"
EMOJI = "emoji, {}"
COLORS = {
    "sentences": "#D55E00",
    "images": "#0072B2",
    "graphs": "#009E73",
    "image-text": "#CC79A7",
}
"""Of the modalities: Okabe & Ito's palette."""

MARKERS = {DCL: "o", MACL: "^"}
"""The losses of the figure of gains."""


@dataclass(frozen=True)
class Result:
    """What a regime showed."""

    regime: Regime
    scale: float
    """W̄ of the baseline, last epoch, mean over seeds."""
    effective: float
    """ESS of the baseline."""
    entries: list[Entry]
    moved: dict[str, float]
    """By loss whose τ adapts: the mean τ of the last epoch over the level of the training."""

    def gain(self, label: str) -> Difference | None:
        """The difference of a loss to the baseline."""
        return next((e.difference for e in self.entries if e.label == label), None)


def gathered() -> Lines:
    """The lines of the study, and those of the emoji under the names that this page uses."""
    lines = Lines(LINES)
    for line in Lines(emoji.LINES):
        label = BASELINE if line.label == emoji.BASELINE else line.label
        moved = replace(line, regime=EMOJI.format(line.regime), label=label)
        lines.by_key[moved.regime, moved.label, moved.seed] = moved
    return lines


def image_text_regimes() -> list[Regime]:
    """Emoji with captions; they were run by `emoji.trials`."""
    return [
        Regime(
            EMOJI.format(emoji.regime(task, text)),
            "image-text",
            emoji.COMPARED,
            "clip-small",
            {},
            (BASELINE, MACL),
            emoji.SEEDS,
            "info-nce",
            items=emoji.ITEMS[task],
        )
        for task, text in product(emoji.TASKS, emoji.TEXTS)
    ]


def score(regime: Regime, line: Line) -> float:
    """The primary score of a line."""
    if regime.metric != "STS":
        return line.scores[regime.metric]
    found = [value for name, value in line.scores.items() if name.split()[1] in STS]
    return sum(found) / len(found)


def results(lines: Lines) -> list[Result]:
    """All regimes whose baseline has three seeds, with verdicts corrected within families.

    A loss is shown from three seeds on, too. As planned, no score is looked at before.
    """
    known = [regime for task in regimes(Path(), Path()).values() for regime in task]
    known += image_text_regimes()
    seeds = Counter((line.regime, line.label) for line in lines)
    raw: list[tuple[Regime, list[Entry]]] = []
    for regime in known:
        labels = [label for label in regime.losses if seeds[regime.name, label] >= FEWEST]
        if BASELINE in labels:
            metric = partial(score, regime)
            own = entries(lines, regime.name, labels, metric, BASELINE, items=regime.items)
            raw.append((regime, own))
    fixed = iter(corrected((entry for _, found in raw for entry in found), family))
    return [
        Result(
            regime,
            figure(lines, regime, "gradient_scale"),
            figure(lines, regime, "effective_anchors"),
            [next(fixed) for _ in found],
            {label: moved(lines, regime.name, label) for label in (MACL, PLAIN)},
        )
        for regime, found in raw
    ]


def family(entry: Entry) -> tuple[str | None, str | None]:
    """The families of planned comparisons: a question each of the plan.

    Does removing W help (DCL to the baseline)? Does the whole method (MACL to the baseline)? Does
    adapting (MACL to its level)? What repeats one of them under another name (MACL with α = 0, a
    control to the baseline) or was not planned is not tested.
    """
    own = {DCL: "reweighting", MACL: "method"}.get(entry.label)
    return own, "adapting" if entry.label in (MACL, PLAIN) else None


def moved(lines: Lines, regime: str, label: str) -> float:
    """The mean τ of the last epoch over that of the training, averaged over seeds; NaN without."""
    own = [line for line in lines if (line.regime, line.label) == (regime, label)]
    found = [line.training["temperature"] / line.temperature for line in own if line.temperature]
    return mean_std(found)[0] if found else math.nan


def figure(lines: Lines, regime: Regime, name: str) -> float:
    """A training figure of the baseline's last epoch, averaged over seeds."""
    return mean_std([*lines.values(regime.name, BASELINE, name).values()])[0]


def main_table(found: Sequence[Result]) -> str:
    """A row per regime and loss."""
    body = []
    for result in found:
        for entry in result.entries:
            first = entry.label == BASELINE
            name = {"info-nce": "InfoNCE", "nt-xent": "NT-Xent"}[result.regime.baseline]
            several = entry.difference is not None and entry.difference.p == entry.difference.p
            body.append(
                [
                    result.regime.name if first else "",
                    entry.label.replace(BASELINE, name),
                    str(len(entry.values)),
                    entry.text,
                    difference_text(entry.difference),
                    difference_text(entry.to_control),
                    f"{result.moved[entry.label]:.2f}" if entry.label in result.moved else "",
                    f"{entry.difference.detectable:.2f}" if several else "–",
                    f"{result.scale:.2g}" if first else "",
                    f"{result.effective:.2f}" if first else "",
                ]
            )
    header = ["regime", "loss", "seeds", "score", "to the baseline", "to its level control"]
    return markdown_table([*header, "τ, last epoch / mean", "detectable", "W̄", "ESS"], body)


def pools(found: Sequence[Result]) -> list[tuple[str, str, Difference]]:
    """(modality, loss, gain) pooled over regimes, with verdicts corrected by Holm.

    Emoji with MiniLM fine-tuned begin where the runs with it frozen end: they are left out.
    """
    modalities = dict.fromkeys(result.regime.modality for result in found)
    places, raw = [], []
    for modality in modalities:
        own = [result for result in found if result.regime.modality == modality]
        own = [result for result in own if emoji.TUNED not in result.regime.name]
        labels = dict.fromkeys(e.label for r in own for e in r.entries)
        for label in (each for each in labels if each in (DCL, MACL)):
            differences = [seeds for r in own if (seeds := by_seed(r, label))]
            if len(differences) > 1:
                places.append((modality, label))
                raw.append(pooled_difference(differences))
    return [(*place, pool) for place, pool in zip(places, adjust(raw), strict=True)]


def by_seed(result: Result, label: str) -> list[float]:
    """The differences of a loss to the baseline by seed."""
    values = {entry.label: entry.values for entry in result.entries}
    own, base = values.get(label, {}), values[BASELINE]
    return [own[seed] - base[seed] for seed in own if seed in base]


def pool_table(found: Sequence[Result]) -> str:
    """Gains pooled over the regimes of a modality."""
    return markdown_table(
        ["modality", "loss", "regimes", "pairs", "gain, 95% interval", "std between regimes"],
        [
            [
                modality,
                label,
                str(pool.settings),
                str(pool.pairs),
                f"{signed(pool.mean)} {interval_text(pool)}, {pool.verdict}",
                f"{pool.between:.2f}",
            ]
            for modality, label, pool in pools(found)
        ],
    )


def rank_text(found: Sequence[Result]) -> str:
    """Spearman's correlation, over regimes, of the gain of DCL with 1 − ESS and with −log W̄."""
    gained = [(r, gain.mean) for r in found if (gain := r.gain(DCL)) is not None]
    gains = [gain for _, gain in gained]
    rows = []
    for name, values in (
        ("1 − ESS", [1 - r.effective for r, _ in gained]),
        ("1 − W̄", [1 - r.scale for r, _ in gained]),
    ):
        rank = stats.spearmanr(values, gains)
        rows.append([name, str(len(gains)), f"{rank.statistic:+.2f}", f"{rank.pvalue:.3g}"])
    return markdown_table(["DCL's gain against", "regimes", "Spearman", "p"], rows)


def draw_gains(found: Sequence[Result]) -> None:
    """Gain of DCL and of MACL against the baseline's ESS and W̄, a point per regime."""
    shown, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for panel, name, place in zip(
        axes, ("ESS of the baseline", "W̄ of the baseline"), ("effective", "scale"), strict=True
    ):
        for result, label in product(found, MARKERS):
            gain = result.gain(label)
            if gain is not None:
                point(panel, getattr(result, place), gain, result.regime.modality, MARKERS[label])
        panel.axhline(0, color="0.4", lw=0.9)
        panel.set(xlabel=name)
    axes[1].set_xscale("log")
    axes[0].set_ylabel("gain over InfoNCE or NT-Xent, points")
    shown_modalities = dict.fromkeys(result.regime.modality for result in found)
    names = [(modality, COLORS[modality], "s") for modality in shown_modalities]
    names += [(label, "0.35", marker) for label, marker in MARKERS.items()]
    shown.legend(
        handles=[
            Line2D([], [], marker=marker, ls="", color=color, label=name)
            for name, color, marker in names
        ],
        loc="outside upper center",
        ncols=len(names),
        frameon=False,
    )
    save(shown, "dilemma-gain")


def point(panel: Axes, x: float, gain: Difference, modality: str, marker: str) -> None:
    """One loss in one regime with its interval."""
    bars = None if gain.pairs < 2 else [[gain.mean - gain.low], [gain.high - gain.mean]]
    panel.errorbar(
        [x], [gain.mean], bars, fmt=marker, ms=5, lw=1.1, alpha=0.85, color=COLORS[modality]
    )  # fmt: skip


def draw_temperatures(found: Sequence[Result]) -> None:
    """Score against τ₀: sentences, and images at the smallest batch, fixed and adaptive."""
    wanted = {
        "Sentences: mean of seven STS tasks": over_temperature(found, "sentences, τ"),
        "Digits, batch 32: kNN top-1": over_temperature(found, "digits, batch 32, τ"),
    }
    shown, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    styles = {BASELINE: ("#0072B2", "o-"), DCL: ("#D55E00", "s-"), MACL: ("#009E73", "^--")}
    for panel, (title, own) in zip(axes, wanted.items(), strict=True):
        for label, (color, style) in styles.items():
            points = [
                (r.regime.temperature, *mean_std([*e.values.values()]))
                for r in own
                for e in r.entries
                if e.label == label
            ]
            if points:
                x, y, spread = zip(*points, strict=True)
                name = "InfoNCE / NT-Xent" if label == BASELINE else label
                panel.errorbar(x, y, spread, fmt=style, color=color, capsize=2, label=name)
        panel.set(title=title, xlabel="τ (τ₀ for MACL)", xscale="log")
        ticks = [r.regime.temperature for r in own]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
    axes[0].set_ylabel("score, mean ± std over seeds")
    axes[0].legend()
    save(shown, "dilemma-temperature")


def over_temperature(found: Sequence[Result], start: str) -> list[Result]:
    """The regimes whose names begin so, by τ."""
    own = (result for result in found if result.regime.name.startswith(start))
    return sorted(own, key=lambda result: result.regime.temperature)


def draw_idea(curves: dict[str, evidence.Curve]) -> None:
    """The README's picture: the factor W of the gradient, and the score over τ with and without."""
    shown, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    x = np.linspace(-10, 6, 200)
    left.plot(x, 1 / (1 + np.exp(-x)), color=BLUE, lw=2.4)
    left.plot(x, np.ones_like(x), color=ORANGE, lw=2.4)
    left.annotate("InfoNCE, NT-Xent: W", (-9.5, 0.05), color=BLUE)
    left.annotate("MACL, DCL: 1", (-9.5, 1.03), color=ORANGE)
    left.set(
        title="What the gradient is multiplied by",
        xlabel="margin x   (easy positive ←   → hard positive)",
        ylim=(-0.03, 1.15),
    )
    for name, color in ((evidence.DCL, ORANGE), (evidence.INFO_NCE, BLUE)):
        points = [(tau, *mean_std([*own.values()])) for tau, own in curves[name].items()]
        taus, scores, spread = zip(*points, strict=True)
        right.errorbar(taus, scores, spread, fmt="o-", color=color, capsize=3, lw=2.2, label=name)
        tau, best = evidence.best(curves[name])
        note = f"best: {mean_std([*best.values()])[0]:.1f} at τ = {tau:.2g}"
        at = (tau, mean_std([*best.values()])[0])
        place = (-70, -60) if color == BLUE else (8, 12)
        right.annotate(note, at, place, textcoords="offset points", color=color)
    right.set(
        title="Small encoder, sentences: mean of seven STS tasks",
        xlabel="temperature τ",
        xscale="log",
    )
    ticks = [0.03, 0.05, 0.1, 0.15]
    right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    right.minorticks_off()
    right.legend(frameon=False)
    save(shown, "idea")


def save(shown: plt.Figure, name: str) -> None:
    """Write a figure as PNG."""
    for axes in shown.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    shown.savefig(FIGURES / f"{name}.png", dpi=110)
    plt.close(shown)


def write_evidence(found: Sequence[Result]) -> None:
    """The gain of reweighting by modality and bins of ESS, as the data that the diagnosis reads."""
    gains = []
    for modality, (low, high) in product(
        dict.fromkeys(r.regime.modality for r in found), pairwise(EDGES)
    ):
        alike = [r for r in found if r.regime.modality == modality and low <= r.effective < high]
        own = [r for r in alike if r.gain(DCL) is not None]
        if own:
            pool = pooled_difference([by_seed(r, DCL) for r in own])
            means = [mean_std(by_seed(r, DCL))[0] for r in own]
            interval = [round(pool.low, 2), round(pool.high, 2)] if len(own) >= FEWEST else None
            gains.append(
                {
                    "modality": {"sentences": "text"}.get(modality, modality),
                    "effective_anchors": [low, min(high, 1.0)],
                    "mean": round(pool.mean, 2),
                    "interval": interval,
                    "range": [round(min(means), 2), round(max(means), 2)],
                    "settings": pool.settings,
                }
            )
    content = {"source": "docs/results/dilemma.md", "loss": "DCL", "gains": gains}
    EVIDENCE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Write the page's parts, the figures and the data of the diagnosis."""
    found = results(gathered())
    replace_part(PAGE, "table", main_table(found))
    replace_part(PAGE, "pools", pool_table(found))
    replace_part(PAGE, "ranks", rank_text(found))
    draw_gains(found)
    draw_temperatures(found)
    draw_idea(evidence.sentence_curves())
    write_evidence(found)


if __name__ == "__main__":
    main()
