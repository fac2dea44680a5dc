"""The second study, planned in docs/results/dilemma2-plan.md: the encoder is the unit.

    python benchmarks/dilemma2.py --data DATA --work FOLDER [--hours 1] [--parts H1,H2]

DATA holds text/wiki_sentences.txt (one per line), SentEval's text/downstream and cifar10/train.npz,
test.npz (images, labels). FOLDER gets the encoders, the parts of the data and the runs in progress.
Finished trials are lines of docs/results/data/dilemma2.jsonl and are never run again: stop and go
on at will. Every line names the version of the library and the commit of its source; set PYTHONPATH
to a checkout that stays as it is while the study runs.
"""

from __future__ import annotations

import argparse
import inspect
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import macl
import mlm
from dilemma import STS
from macl import CosineSchedule
from macl.evaluation.score import score_run
from macl.experiments.compare import Cell
from macl.experiments.running import run_cell
from macl.probes.score import Score
from macl.runs import Run
from study import Lines, Trial, run_trials

LINES = Path(__file__).parents[1] / "docs/results/data/dilemma2.jsonl"

SENTENCES, ENCODERS, STEPS = 20_000, 10, 312
IMAGES, EPOCHS = 5_000, 20
LOSSES: dict[str, dict[str, Any]] = {
    "InfoNCE": {"loss": "info-nce"},
    "DCL": {"loss": "dcl"},
    "SigLIP": {"loss": "siglip", "loss.bias": -10.0},
}
LEVELS = (0.03, 0.045, 0.065, 0.1)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ε = 1e-15": {"optimizer.eps": 1e-15},
    "not clipped": {"gradient_clip": None},
    "rate 1e-4": {"optimizer.lr": 1e-4},
}
EASY = {
    "views.crop_scale": [0.7, 1.0],
    "views.jitter_p": 0.0,
    "views.gray_p": 0.0,
    "batch_size": 16,
}
EASY_LEVELS = (0.1, 0.05, 0.03, 0.02)
SMALL_W = 0.1
"""H4 takes the highest τ at which NT-Xent's W̄ is below this."""
PILOT = 100
"""The seed that finds it."""
PARTS = ("H1", "H2", "H3-sentences", "H4", "H3-images", "H5")

BOUNDS = [*inspect.signature(CosineSchedule).parameters][:2]
"""The keys of the lowest and the highest τ of a cosine in the source that runs."""

RISING, FALLING, FIXED = "τ rising", "τ falling", "τ fixed"


def ramp(share: Tensor, lowest: float, highest: float, *, rising: bool) -> Tensor:
    """τ after a share of the training, on a geometric path from one bound to the other."""
    start, end = (lowest, highest) if rising else (highest, lowest)
    return start * (end / start) ** share


def ramp_forward(self: CosineSchedule, step: object) -> Tensor:
    """In place of the cosine's: over `period` // 2 steps τ rises if `period` is odd, else falls."""
    share = (self.step.float() / (self.period // 2)).clamp(max=1.0)
    bounds = [getattr(self, name) for name in BOUNDS]
    return ramp(share, *bounds, rising=bool(self.period % 2))


def ramp_settings(middle: float, steps: int) -> dict[str, Any]:
    """τ rising and falling twofold around `middle`, and fixed at the harmonic mean of either.

    1/τ of a geometric path between m/√2 and m·√2 has the mean 1/(√2·ln 2·m).
    """
    ends = (middle / math.sqrt(2), middle * math.sqrt(2))
    bounds = {"name": "cosine", **dict(zip(BOUNDS, ends, strict=True))}
    return {
        RISING: {**bounds, "period": 2 * steps + 1},
        FALLING: {**bounds, "period": 2 * steps},
        FIXED: round(math.sqrt(2) * math.log(2) * middle, 6),
    }


def sentence_trial(
    work: Path, data: Path, encoder: int, label: str, extra: dict[str, Any]
) -> Trial:
    """SimCSE from one encoder on its own sentences."""
    values = {
        "encoder.name": str(work / f"encoder-{encoder}"),
        "encoder.pooling": "mean",
        "encoder.hidden_dropout": 0.1,
        "encoder.attention_dropout": 0.1,
        "data.path": str(work / f"sentences-{encoder}.txt"),
        "evaluation.senteval": str(data / "text"),
        "evaluation.protocols": [task for task in STS if task != "STS-B"],
        "optimizer.lr": 3e-4,
        "monitor_every": 0,
        "monitor_steps": 0,
        "evaluate_best": False,
    }
    return Trial("sentences", label, encoder, "simcse-bert", {**values, **extra})


def image_trial(
    work: Path, data: Path, regime: str, label: str, seed: int, extra: dict[str, Any]
) -> Trial:
    """SimCLR on 5,000 images of CIFAR-10 that the seed draws."""
    values = {
        "data.path": str(work / f"images-{seed}.npz"),
        "data.test_path": str(data / "cifar10/test.npz"),
        "evaluation.protocols": ["knn"],
        "monitor_every": 0,
        "epochs": EPOCHS,
    }
    return Trial(regime, label, seed, "cifar10-small", {**values, **extra})


def trials(part: str, work: Path, data: Path, lines: Lines) -> Iterator[Trial]:
    """The trials of a hypothesis, by unit."""
    text, image = partial(sentence_trial, work, data), partial(image_trial, work, data)
    if part == "H1":
        for unit, tau, (name, loss) in product(range(8), LEVELS, LOSSES.items()):
            yield text(unit, f"{name}, τ = {tau:g}", {**loss, "loss.temperature": tau})
    elif part == "H2":
        low = {**LOSSES["InfoNCE"], "loss.temperature": LEVELS[0]}
        for unit, (name, optimizer) in product(range(8), OPTIMIZERS.items()):
            yield text(unit, f"InfoNCE, τ = 0.03, {name}", {**low, **optimizer})
    elif part == "H3-sentences":
        for unit, (name, tau) in product(range(ENCODERS), ramp_settings(0.05, STEPS).items()):
            yield text(unit, f"DCL, {name}", {"loss": "dcl", "loss.temperature": tau})
    elif part == "H3-images":
        steps = EPOCHS * (IMAGES // 64)
        for seed, (name, tau) in product(range(10), ramp_settings(0.1, steps).items()):
            values = {"loss": "dcl", "loss.temperature": tau}
            yield image("images, adaptivity", f"DCL, {name}", seed, values)
    elif part == "H4":
        yield from easy_trials(image, lines)
    elif part == "H5":
        long = {"data.path": str(data / "cifar10/train.npz"), "epochs": 80, "monitor_every": 5}
        rules = {"NT-Xent": "nt-xent", "DCL": "dcl", "MACL": "macl"}
        for seed, (name, loss) in product(range(3), rules.items()):
            values = {**long, "loss": loss, "loss.temperature": 0.1}
            values |= {"loss.threshold": 0.0} if loss == "macl" else {}
            yield image("images, length", name, seed, values)


def easy_trials(image: Callable[..., Trial], lines: Lines) -> Iterator[Trial]:
    """NT-Xent on easy positives over τ with one seed, until W̄ is small; then both losses there."""
    regime = "images, easy positives"
    for tau in EASY_LEVELS:
        own = {**EASY, "loss": "nt-xent", "loss.temperature": tau}
        held = {"data.holdout": 0.2, "evaluation.split": "validation"}
        pilot = image(f"{regime}, level", f"NT-Xent, τ = {tau:g}", PILOT, {**own, **held})
        yield pilot
        found = lines.by_key.get(pilot.key)
        if found is None:
            return
        if found.training["gradient_scale"] < SMALL_W:
            break
    for seed, (name, loss) in product(range(10), (("NT-Xent", "nt-xent"), ("DCL", "dcl"))):
        own = {**EASY, "loss": loss, "loss.temperature": tau}
        yield image(regime, f"{name}, τ = {tau:g}", seed, own)


def prepare(trial: Trial, work: Path, data: Path) -> None:
    """Make what a trial starts from, where it is not there: its part of the data, its encoder."""
    work.mkdir(parents=True, exist_ok=True)
    if trial.regime != "sentences":
        place = work / f"images-{trial.seed}.npz"
        if str(place) == trial.overrides["data.path"] and not place.is_file():
            found = np.load(data / "cifar10/train.npz")
            drawn = np.random.default_rng(trial.seed).permutation(len(found["labels"]))[:IMAGES]
            np.savez(place, images=found["images"][drawn], labels=found["labels"][drawn])
        return
    part, encoder = work / f"sentences-{trial.seed}.txt", work / f"encoder-{trial.seed}"
    if not part.is_file():
        lines = (data / "text/wiki_sentences.txt").read_text(encoding="utf-8").split("\n")
        own = lines[SENTENCES * trial.seed : SENTENCES * (trial.seed + 1)]
        part.write_text("\n".join(own) + "\n", encoding="utf-8")
    if not encoder.is_dir():
        options = ["--epochs", "5", "--layers", "3", "--seed", str(trial.seed)]
        unfinished = encoder.with_suffix(".part")
        mlm.train(mlm.options_of([str(part), str(unfinished), *options]))
        unfinished.rename(encoder)


def execute(cell: Cell) -> None:
    """Train and evaluate a cell; of sentences STS-B dev too, of long trainings kNN on the way."""
    run_cell(cell)
    run = Run(cell.folder)
    if cell.recipe["modality"] == "text":
        score_run(run, {"evaluation.split": "dev"}, protocols=["STS-B"])
    along = [row for row in run.metrics() if "monitor" in row]
    run.record(
        [
            Score("along", f"{name} {int(row['epoch'])}", row[name], split="train")
            for row in along
            for name in ("monitor", "gradient_scale")
            if name in row
        ]
    )


def source_version() -> str:
    """The library's version, and the commit of its source where that is a checkout."""
    asked = ["git", "-C", str(Path(macl.__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return (
        f"{macl.__version__}+{found.stdout.strip()}" if not found.returncode else macl.__version__
    )


def order(parts: list[str], work: Path, data: Path, lines: Lines) -> Iterator[Trial]:
    """H1 and H2 by encoder, then the other parts in the plan's order."""
    both = [t for part in ("H1", "H2") if part in parts for t in trials(part, work, data, lines)]
    yield from sorted(both, key=lambda trial: trial.seed)
    for part in PARTS[2:]:
        if part in parts:
            yield from trials(part, work, data, lines)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--parts", type=lambda names: names.split(","), default=[*PARTS])
    parser.add_argument("--lines", type=Path, default=LINES)
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}.")
    torch.set_num_threads(1)
    CosineSchedule.forward = ramp_forward  # type: ignore[method-assign]
    data, work = options.data.resolve(), options.work.resolve()
    lines, version = Lines(options.lines), source_version()
    end = time.monotonic() + 3600 * options.hours
    complete = True
    for trial in order(options.parts, work, data, lines):
        left = (end - time.monotonic()) / 60
        if trial.key not in lines.by_key and left > 0:
            prepare(trial, work, data)
            left = (end - time.monotonic()) / 60
        complete &= run_trials([trial], lines, work / "runs", left, execute, version=version)
    print("complete" if complete else "not complete: give the same command again", flush=True)


if __name__ == "__main__":
    main()
