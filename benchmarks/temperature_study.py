"""Temperature methods beside NT-Xent: settings chosen on validation, seeds, controls, a page.

    python benchmarks/temperature_study.py --tasks digits,cifar10 --data DATA --budget 60
    python benchmarks/temperature_study.py --write

DATA holds cifar10/train.npz and test.npz, text/wiki20k.txt and SentEval's text/downstream.
Sentences also need `--encoder`, a folder that benchmarks/mlm.py wrote. Each method runs three
candidate settings with one seed, judged on a part of the training data (sentences: STS-B dev). The
best one runs with all seeds and is judged on the test data. A control, NT-Xent or InfoNCE with τ
fixed at the mean τ that the method had, follows.

A finished cell is a row of the CSV file, is known by all of its settings and never run again. The
budget is in minutes of wall time: a cell that would exceed it is not started.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import macl
import temperature_page
from macl.core.progress import silence
from macl.experiments.controls import mean_temperature
from macl.experiments.rows import scores_of, training_figures
from macl.runs import Run
from temperature_cells import FIGURES, Cell, Records, cells_of, plan, text, value
from temperature_settings import TASKS

DOCS = Path(__file__).parents[1] / "docs" / "results"
RECORDS = DOCS / "data" / "temperatures.csv"


def data_of(name: str, data: Path | None, encoder: Path | None) -> dict[str, Any]:
    """Overrides that say where a task's data lies; no part of a cell's key."""
    if name == "digits":
        return {}
    if data is None:
        raise SystemExit(f"{name} needs --data, the folder with cifar10/ and text/.")
    if name == "cifar10":
        return {"data.path": data / "cifar10" / "train.npz"}
    if encoder is None:
        raise SystemExit("sentences need --encoder, a folder that benchmarks/mlm.py wrote.")
    return {
        "data.path": data / "text" / "wiki20k.txt",
        "evaluation.senteval": data / "text",
        "encoder.name": str(encoder),
    }


def run(cell: Cell, folder: Path, places: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate a cell; returns the columns of its row."""
    shutil.rmtree(folder, ignore_errors=True)
    task, start = TASKS[cell.task], time.perf_counter()
    overrides = {**cell.sizes(task), **places, "seed": cell.seed, "loss": cell.setting}
    with silence():
        macl.evaluate(macl.train(task.recipe, out=folder, overrides=overrides))
    found = Run(folder)
    scores = scores_of(found)
    rows = found.metrics()
    monitored = [row["monitor"] for row in rows if "monitor" in row]
    if monitored and cell.stage == "choose":
        scores = {"monitor": monitored[-1], **scores}
    figures = {key: f"{v:.6g}" for key, v in training_figures(found).items() if key in FIGURES}
    level = mean_temperature(found) if any("temperature" in row for row in rows) else ""
    shutil.rmtree(folder, ignore_errors=True)
    return {
        **figures,
        "level": f"{level:.6g}" if level else "",
        "scores": json.dumps({key: round(v, 4) for key, v in scores.items()}),
        "seconds": f"{time.perf_counter() - start:.1f}",
        "version": macl.__version__,
    }


def study(args: argparse.Namespace) -> None:
    """Run the cells that are missing, one at a time, until the budget ends."""
    records, started = Records(args.records), time.monotonic()
    for name in args.tasks:
        places, ended = data_of(name, args.data, args.encoder), False
        while not ended:
            todo = next((cell for cell in plan(records, name) if not records.get(cell)), None)
            if todo is None:
                print(f"{name}: complete", flush=True)
                break
            spent, expected = time.monotonic() - started, records.seconds(name)
            if spent + expected > 60 * args.budget:
                done = sum(row["task"] == name for row in records.rows.values())
                rest = max(0, cells_of(name) - done)
                print(
                    f"{name}: budget ends; {done} cells done, {rest} left, "
                    f"about {rest * expected / 60:.0f} minutes"
                )
                return
            row = run(todo, args.out / "cell", places)
            records.add(todo, row)
            gc.collect()
            shown = {key: value(records.rows[todo.key], key) for key in TASKS[name].scores}
            print(
                f"{name} {todo.stage:6s} {todo.method} {text(todo.setting)} seed {todo.seed}: "
                f"{shown} τ {row['level']} {row['seconds']} s; {cells_of(name)} cells, about "
                f"{cells_of(name) * records.seconds(name) / 60:.0f} minutes in all",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=lambda names: names.split(","), default=["digits"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="MINUTES")
    parser.add_argument("--out", type=Path, default=Path("temperature-study"))
    parser.add_argument("--records", type=Path, default=RECORDS, help="the CSV file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the page and run nothing")
    args = parser.parse_args()
    unknown = set(args.tasks) - set(TASKS)
    if unknown:
        parser.error(f"no task is called {', '.join(unknown)}; there are {', '.join(TASKS)}.")
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    if args.write:
        temperature_page.write(DOCS / "temperatures.md", args.records)
    else:
        study(args)


if __name__ == "__main__":
    main()
