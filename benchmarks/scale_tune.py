"""Regret against the number of trials: Optuna's TPE, random choice, and a grid by hand.

    python benchmarks/scale_tune.py [--task cifar10|sentences] [--minutes 5]
                                    [--data /path/to/cifar10.npz]

Every setting of a table (temperature × learning rate × loss) is trained once, small, and its
validation score kept as a line of docs/results/data/scale-tune.jsonl; the command goes on where it
stopped, and ends after --minutes. When the table of a task is complete, searches are replayed on
it: TPE and random choice over 50 seeds, and the grid in its order from 20 random starts. Regret is
the best score of the table minus the best found. The section "tune" of docs/results/scale.md is
replaced by the tasks whose tables are complete.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from macl.experiments.tune import Objective, Search, validate
from scale_page import machine, replace_section, table

LINES = Path(__file__).parents[1] / "docs" / "results" / "data" / "scale-tune.jsonl"
SHARED = Path(os.environ.get("MACL_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
AFTER = (1, 2, 4, 8, 12, 16, 24)
SPACE: dict[str, list[Any]] = {
    "loss": ["nt-xent", "dcl", "macl"],
    "loss.temperature": [0.03, 0.07, 0.15, 0.35],
    "optimizer.lr": [1e-4, 4e-4, 1.6e-3, 6.4e-3],
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar10": (
        "cifar10-small",
        {"epochs": 4, "data.limit": 3000, "batch_size": 128, "monitor_every": 4},
    ),
    "sentences": (
        "topics",
        {"epochs": 2, "data.limit": 1500, "batch_size": 128, "monitor_every": 2},
    ),
}


def key_of(setting: dict[str, Any]) -> str:
    return json.dumps(setting, sort_keys=True)


def read(task: str) -> dict[str, float]:
    """Setting → score."""
    if not LINES.is_file():
        return {}
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    return {key_of(line["setting"]): line["score"] for line in lines if line["task"] == task}


def settings() -> list[dict[str, Any]]:
    return [dict(zip(SPACE, chosen, strict=True)) for chosen in product(*SPACE.values())]


def fill(task: str, data: Path | None, minutes: float) -> None:
    """Train the settings that have no line yet, until the time is over."""
    recipe, given = TASKS[task]
    deadline, done = time.monotonic() + 60 * minutes, read(task)
    if data is not None:
        given = given | {"data.path": data}
    for setting in settings():
        if key_of(setting) in done:
            continue
        if time.monotonic() > deadline:
            return
        with tempfile.TemporaryDirectory() as scratch:
            objective = (Objective("monitor"),)
            cell = Search(recipe, {}, given, Path(scratch), objective).cell(setting, 0)
            (score,) = validate(cell, 1, objective)
        LINES.parent.mkdir(parents=True, exist_ok=True)
        with LINES.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": task, "setting": setting, "score": score}) + "\n")
        print(task, setting, f"{score:.2f}", flush=True)


def by_optuna(scores: dict[str, float], sampler: Any, trials: int) -> list[float]:
    """The scores that a sampler of Optuna finds, one after the other."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: list[float] = []

    def objective(trial: Any) -> float:
        texts = {key: [str(v) for v in values] for key, values in SPACE.items()}
        chosen = {
            key: values[texts[key].index(trial.suggest_categorical(key, texts[key]))]
            for key, values in SPACE.items()
        }
        found.append(scores[key_of(chosen)])
        return found[-1]

    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=trials)
    return found


def regrets(scores: dict[str, float], runs: Sequence[list[float]]) -> list[str]:
    best = max(scores.values())
    return [f"{mean(best - max(run[:count]) for run in runs):.2f}" for count in AFTER]


def section(task: str, scores: dict[str, float]) -> str:
    import optuna

    samplers: dict[str, Callable[[int], Any]] = {
        "TPE (macl tune)": lambda seed: optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=5
        ),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    rows = [
        [name, *regrets(scores, [by_optuna(scores, make(s), max(AFTER)) for s in range(50)])]
        for name, make in samplers.items()
    ]
    grid = [scores[key_of(setting)] for setting in settings()]
    starts = random.Random(0).sample(range(len(grid)), 20)
    rows.append(["grid by hand", *regrets(scores, [(grid[s:] + grid[:s]) for s in starts])])
    head = [f"{task}: regret after", *(str(count) for count in AFTER)]
    spread = f"scores {min(grid):.1f} to {max(grid):.1f}, mean {mean(grid):.1f}"
    recipe, given = TASKS[task]
    about = " ".join(f"{k}={v}" for k, v in given.items())
    return f"{table(head, rows)}\n\n{len(grid)} settings of {recipe} ({about}): {spread}."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=[*TASKS])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--data", type=Path, help="CIFAR-10; by default of the shared data")
    given = parser.parse_args()
    for task in [given.task] if given.task else [*TASKS]:
        data = given.data
        if task == "cifar10" and data is None:
            data = next(iter(sorted((SHARED / "images").glob("cifar10*"))), None)
            if data is None:
                print("no CIFAR-10 found: give --data")
                continue
        fill(task, data if task == "cifar10" else None, given.minutes)
    complete = {task: read(task) for task in TASKS if len(read(task)) == len(settings())}
    if complete:
        texts = [section(task, scores) for task, scores in complete.items()]
        replace_section("tune", "\n\n".join([*texts, machine() + "."]))
    for task in TASKS:
        print(f"{task}: {len(read(task))} of {len(settings())} settings", flush=True)


if __name__ == "__main__":
    main()
