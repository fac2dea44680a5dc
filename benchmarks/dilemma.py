"""The study of docs/results/dilemma-plan.md: does reweighting or an adaptive temperature help?

    python benchmarks/dilemma.py --data DATA --mlm FOLDER [--tasks sentences,digits] [--minutes 60]

DATA is a folder with text/ (wiki20k.txt and wiki100k.txt, lines 100,001 to 120,000 and to 200,000
of the Wikipedia sentences, and SentEval's downstream/), cifar10/ (train.npz, test.npz) and tu/;
FOLDER is what `benchmarks/mlm.py` wrote, with `mlm2` of another width and depth beside it. Finished
trials are lines of docs/results/data/dilemma.jsonl and are never run again: stop and go on at will,
here or elsewhere. `benchmarks/dilemma_page.py` makes the page and its figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import Lines, Trial, run_trials

LINES = Path(__file__).parents[1] / "docs/results/data/dilemma.jsonl"

BASELINE = "baseline"
DCL = "DCL"
DUAL = "Dual"
MACL = "MACL"
PLAIN = "MACL without reweighting"
ALPHA0 = "MACL with α = 0"
LEVEL = ", level control"
OPTIMIZER = {
    ", ε = 1e-15": {"optimizer.eps": 1e-15},
    ", not clipped": {"gradient_clip": None},
}
"""Controls of a loss: the same with another setting of the optimizer."""

STS = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
SENTENCES = ("sentences", "more-sentences")
RATES = (3e-4, 1e-3, 3e-3)
"""Candidates of the learning rate for sentences, chosen on STS-B dev."""


@dataclass(frozen=True)
class Regime:
    """One setting in which losses are compared."""

    name: str
    modality: str
    metric: str
    """The primary score; "STS" is the mean of the seven tasks."""
    recipe: str
    overrides: dict[str, Any]
    losses: tuple[str, ...]
    seeds: int
    baseline: str = "nt-xent"
    """Its name in recipes."""
    temperature: float = 0.1
    items: int = 0
    """Of the test set, where the score is a share of them."""

    def trial(self, label: str, seed: int, extra: dict[str, Any]) -> Trial:
        """The trial of one loss with one seed."""
        loss, _, control = label.partition(", ")
        settings: dict[str, Any] = {
            BASELINE: {"loss": self.baseline},
            DCL: {"loss": "dcl"},
            DUAL: {"loss": "dual"},
            MACL: {"loss": "macl", "loss.reweight": True},
            PLAIN: {"loss": "macl", "loss.reweight": False},
            ALPHA0: {"loss": "macl", "loss.reweight": True, "loss.alpha": 0.0},
        }[loss]
        settings |= {"loss.temperature": self.temperature, **OPTIMIZER.get(f", {control}", {})}
        values = {**self.overrides, **settings, **extra}
        return Trial(
            self.name, label, seed, self.recipe, values, loss if label.endswith(LEVEL) else None
        )


def sentence_regimes(data: Path, mlm: Path) -> list[Regime]:
    """20,000 sentences over τ."""
    every = (BASELINE, DCL, MACL, PLAIN, DUAL, MACL + LEVEL, PLAIN + LEVEL)
    every += tuple(loss + control for control in OPTIMIZER for loss in (BASELINE, DCL))
    return [
        sentences("sentences", data, mlm, 0.05, every, 10),
        *(
            sentences("sentences", data, mlm, temperature, (BASELINE, DCL), 5)
            for temperature in (0.03, 0.1, 0.02, 0.2)
        ),
    ]


def other_sentence_regimes(data: Path, mlm: Path) -> list[Regime]:
    """100,000 sentences over τ, and a second encoder."""
    three = (BASELINE, DCL, MACL)
    longer = [
        sentences("100,000 sentences", data, mlm, temperature, three, 3, "wiki100k.txt")
        for temperature in (0.05, 0.03, 0.1)
    ]
    second = [
        sentences("sentences, second encoder", data, mlm.parent / "mlm2", temperature, three, 3)
        for temperature in (0.05, 0.03)
    ]
    return [*longer, *second]


def sentences(
    name: str,
    data: Path,
    mlm: Path,
    temperature: float,
    losses: tuple[str, ...],
    seeds: int,
    file: str = "wiki20k.txt",
) -> Regime:
    """SimCSE from an encoder that benchmarks/mlm.py wrote."""
    overrides = {
        "encoder.name": str(mlm),
        "encoder.pooling": "mean",
        "encoder.hidden_dropout": 0.1,
        "encoder.attention_dropout": 0.1,
        "data.path": str(data / "text" / file),
        "evaluation.senteval": str(data / "text"),
        "evaluation.protocols": STS,
        "monitor_every": 0,
        "monitor_steps": 0,
        "evaluate_best": False,
    }
    return Regime(
        f"{name}, τ = {temperature}",
        "sentences",
        "STS",
        "simcse-bert",
        overrides,
        losses,
        seeds,
        "info-nce",
        temperature,
    )


def image_regimes(
    recipe: str, values: dict[str, Any], grid: list[tuple[int, float]]
) -> list[Regime]:
    """A grid of batch sizes and temperatures on images."""
    return [
        Regime(
            f"{recipe}, batch {batch}, τ = {temperature}",
            "images",
            "knn top1",
            recipe,
            {**values, "batch_size": batch},
            (BASELINE, DCL, MACL, MACL + LEVEL),
            10,
            temperature=temperature,
            items=360 if recipe == "digits" else 5000,
        )
        for batch, temperature in grid
    ]


def graph_regimes(data: Path) -> list[Regime]:
    """TU sets over τ."""
    return [
        Regime(
            f"{name.upper()}, τ = {temperature}",
            "graphs",
            "svm accuracy",
            f"graphcl-{name}",
            {"data.path": str(data / "tu")},
            (BASELINE, DCL, MACL, PLAIN, DUAL, MACL + LEVEL, *extra),
            10,
            "info-nce",
            temperature,
            {"mutag": 188, "proteins": 1113}[name],
        )
        for name, temperature, extra in (
            ("mutag", 0.05, (ALPHA0,)),  # DCL's gradient: a check of the whole chain
            ("mutag", 0.2, ()),
            ("proteins", 0.05, ()),
            ("proteins", 0.2, ()),
        )
    ]


def regimes(data: Path, mlm: Path) -> dict[str, list[Regime]]:
    """All regimes by task."""
    digits = [(b, t) for t in (0.1, 0.05, 0.2, 0.5) for b in (8, 32, 256)]
    cifar = [(16, 0.1), (64, 0.1), (16, 0.05), (64, 0.05), (16, 0.2), (256, 0.1)]
    quick = {"monitor_every": 0, "evaluation.protocols": ["knn", "linear"]}
    small = {
        **quick,
        "data.path": str(data / "cifar10/train.npz"),
        "data.test_path": str(data / "cifar10/test.npz"),
        "data.limit": 5000,
        "epochs": 20,
    }
    return {
        "sentences": sentence_regimes(data, mlm),
        "more-sentences": other_sentence_regimes(data, mlm),
        "digits": image_regimes("digits", {**quick, "epochs": 15}, digits),
        "graphs": graph_regimes(data),
        "cifar10": image_regimes("cifar10-small", small, cifar),
    }


def rate_trials(regime: Regime) -> list[Trial]:
    """The candidates of the learning rate, scored on STS-B dev with one seed."""
    dev = {"evaluation.protocols": ["STS-B"], "evaluation.split": "dev"}
    chosen = []
    for label in (BASELINE, DCL):
        for rate in RATES:
            trial = regime.trial(label, 0, {**dev, "optimizer.lr": rate})
            chosen.append(
                Trial(
                    "sentences, learning rate",
                    f"{label}, {rate:g}",
                    0,
                    trial.recipe,
                    trial.overrides,
                )
            )
    return chosen


def chosen_rate(label: str, lines: Lines) -> float | None:
    """The best learning rate on STS-B dev; None before all candidates are finished.

    Losses whose gradient carries W share the baseline's, the others DCL's.
    """
    source = BASELINE if label.partition(", ")[0] in (BASELINE, PLAIN) else DCL
    scores = {}
    for rate in RATES:
        line = lines.by_key.get(("sentences, learning rate", f"{source}, {rate:g}", 0))
        if line is None:
            return None
        scores[rate] = next(iter(line.scores.values()))
    return max(scores, key=lambda rate: scores[rate])


def trials(task: str, found: list[Regime], lines: Lines) -> Iterator[Trial]:
    """The trials of a task, the most important first."""
    planned = [
        (regime, label, seed)
        for seed in range(max(regime.seeds for regime in found))
        for regime in found
        for label in regime.losses
        if seed < regime.seeds
    ]
    if task == "sentences":
        yield from rate_trials(found[0])
    if task in SENTENCES:
        planned.sort(key=lambda cell: importance(*cell))
    for regime, label, seed in planned:
        extra: dict[str, Any] = {}
        if task in SENTENCES:
            rate = chosen_rate(label, lines)
            if rate is None:
                return
            extra["optimizer.lr"] = rate
        yield regime.trial(label, seed, extra)


def importance(regime: Regime, label: str, seed: int) -> tuple[int, int]:
    """Where a trial stands in the order: three seeds of everything before the fourth of anything.

    First come the losses with and without W over three temperatures, then MACL, then its controls,
    then the outer temperatures.
    """
    central = regime.temperature in (0.03, 0.05, 0.1)
    if label in (BASELINE, DCL):
        return seed // 3, 0 if central else 3
    return seed // 3, 1 if label in (MACL, PLAIN) else 2


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mlm", type=Path, required=True)
    parser.add_argument("--tasks", default="sentences,digits,graphs,cifar10")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--losses", help="only these, such as baseline;DCL")
    parser.add_argument("--seeds", type=int, help="no more than these")
    parser.add_argument("--regime", default="", help="only those whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("runs/dilemma"))
    parser.add_argument("--lines", type=Path, default=LINES)
    options = parser.parse_args()
    lines = Lines(options.lines)
    found = regimes(options.data.resolve(), options.mlm.resolve())
    for task in options.tasks.split(","):
        chosen = (
            trial
            for trial in trials(task, found[task], lines)
            if (options.losses is None or trial.label in options.losses.split(";"))
            and (options.seeds is None or trial.seed < options.seeds)
            and options.regime in trial.regime
        )
        others = [Lines(LINES.with_name("temperatures-sentences.jsonl"))]
        done = run_trials(chosen, lines, options.out, options.minutes, elsewhere=others)
        print(task, "complete" if done else "not complete: give the same command again", flush=True)


if __name__ == "__main__":
    main()
