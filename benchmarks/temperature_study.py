"""Temperature methods beside NT-Xent: settings chosen on validation, seeds, controls, a page.

    python benchmarks/temperature_study.py --tasks digits,cifar10 --data DATA --minutes 60
    python benchmarks/temperature_study.py --write

DATA holds cifar10/train.npz and test.npz, text/wiki20k.txt and SentEval's text/downstream.
Sentences also need `--encoder`, a folder that benchmarks/mlm.py wrote. Each method runs three
candidate settings with one seed, judged on a part of the training data (sentences: STS-B dev). The
best one runs with all seeds and is judged on the test data. A control, NT-Xent or InfoNCE with τ
fixed at the level that the method had (`control_level`), follows.

Finished trials are lines of docs/results/data/temperatures-TASK.jsonl and are never run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from study import Line, Lines, Trial, run_trials
from temperature_settings import (
    TASKS,
    Method,
    Setting,
    control,
    control_level,
    methods,
    section,
)

DATA = Path(__file__).parents[1] / "docs/results/data"
VALIDATION = "{}, validation"
CONTROL = "{}, control"


def lines_of(task: str, folder: Path = DATA) -> Lines:
    """The finished trials of a task."""
    return Lines(folder / f"temperatures-{task}.jsonl")


def places(name: str, data: Path | None, encoder: Path | None) -> dict[str, Any]:
    """Overrides that say where a task's data lies."""
    if name == "digits":
        return {}
    if data is None:
        raise SystemExit(f"{name} needs --data, the folder with cifar10/ and text/.")
    if name == "cifar10":
        return {
            "data.path": str(data / "cifar10/train.npz"),
            "data.test_path": str(data / "cifar10/test.npz"),
        }
    if encoder is None:
        raise SystemExit("sentences need --encoder, a folder that benchmarks/mlm.py wrote.")
    return {
        "data.path": str(data / "text/wiki20k.txt"),
        "evaluation.senteval": str(data / "text"),
        "encoder.name": str(encoder),
    }


def chosen(lines: Lines, name: str, own: Method) -> Setting | None:
    """The candidate with the best score on validation; None before all of them have run.

    Once its seeds have begun the choice stays: a candidate that was added later is named on the
    page as not run.
    """
    if len(own.candidates) == 1:
        return own.candidates[0]
    found = [lines.by_key.get((VALIDATION.format(name), text(c), 0)) for c in own.candidates]
    judged = [-math.inf if line is None else validation_score(name, line) for line in found]
    if None in found and not begun(lines, name, own):
        return None
    return own.candidates[judged.index(max(judged))]


def begun(lines: Lines, name: str, own: Method) -> bool:
    """Whether the method has a line on the test data."""
    label = next(key for key, known in methods(TASKS[name]).items() if known == own)
    return (name, label, 0) in lines.by_key


def validation_score(name: str, line: Line) -> float:
    """The first score of the task that the line has."""
    return next(line.scores[score] for score in TASKS[name].scores if score in line.scores)


def control_of(lines: Lines, name: str, method: str, setting: Setting) -> Setting | None:
    """The control's setting, at the level of τ over all seeds; None before all of them have run."""
    found = [lines.by_key.get((name, method, seed)) for seed in range(TASKS[name].seeds)]
    levels = [line.temperature for line in found if line is not None]
    known = [level for level in levels if level is not None]
    if len(known) < len(found):
        return None
    return control(setting, control_level(setting, statistics.fmean(known)))


def trials(lines: Lines, name: str, where: Mapping[str, Any]) -> Iterator[Trial]:
    """The trials of a task in the order of the study; later ones depend on the first's lines."""
    task = TASKS[name]
    known = methods(task)

    def trial(regime: str, label: str, setting: Setting, seed: int, **extra: Any) -> Trial:
        overrides = {**task.sizes, **where, **extra, "loss": section(setting)}
        return Trial(regime, label, seed, task.recipe, overrides)

    def seeded(label: str, setting: Setting) -> Iterator[Trial]:
        return (trial(name, label, setting, seed) for seed in range(task.seeds))

    for own in known.values():
        if len(own.candidates) > 1:
            for setting in own.candidates:
                yield trial(VALIDATION.format(name), text(setting), setting, 0, **task.choose)
    for method, own in known.items():
        if (best := chosen(lines, name, own)) is not None:
            yield from seeded(method, best)
    # The controls of the methods that adapt τ come first: the study is about them.
    for method, own in sorted(known.items(), key=lambda item: not item[1].adapts):
        best = chosen(lines, name, own)
        if own.has_level and best is not None and method != next(iter(known)):
            fixed = control_of(lines, name, method, best)
            if fixed is not None:
                yield from seeded(control_label(lines, name, method, fixed), fixed)


def control_label(lines: Lines, name: str, method: str, fixed: Setting) -> str:
    """The label of a method's control; with its τ where one at another level has run before."""
    label, tau = CONTROL.format(method), fixed["temperature"]
    known = lines.by_key.get((name, label, 0))
    same = known is None or known.temperature is None or abs(known.temperature / tau - 1) < 0.01
    return label if same else f"{label} at {tau:g}"


def text(setting: Setting) -> str:
    """A setting as text, by which its candidate is found."""
    return json.dumps(setting, sort_keys=True)


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=lambda names: names.split(","), default=["digits"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", help="only these methods, such as MACL,TempNet")
    parser.add_argument("--out", type=Path, default=Path("runs/temperatures"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the page and run nothing")
    options = parser.parse_args()
    unknown = set(options.tasks) - set(TASKS)
    if unknown:
        parser.error(f"no task is called {', '.join(unknown)}; there are {', '.join(TASKS)}.")
    if options.write:
        import temperature_page

        temperature_page.write()
        return
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for name in options.tasks:
        lines, where = lines_of(name), places(name, options.data, options.encoder)
        wanted = options.only.split(",") if options.only else None
        planned = (
            trial
            for trial in trials(lines, name, where)
            if wanted is None or trial.label.removesuffix(CONTROL.format("")) in wanted
        )
        others = [Lines(DATA / "dilemma.jsonl")]
        done = run_trials(planned, lines, options.out, options.minutes, elsewhere=others)
        print(name, "complete" if done else "not complete: give the same command again", flush=True)


if __name__ == "__main__":
    main()
