"""Trials within a budget of time: one JSON line per finished trial, which is never run again.

A study is a list of trials. `run_trials` runs those that have no line yet, one at a time in this
process, and appends a line as each one ends: its scores, the figures of its training, its mean
temperature. The file of lines is small, is committed beside the page that is made from it, and is
all that another machine needs to go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import macl
from macl import recipes
from macl.core.errors import UserError
from macl.experiments.compare import Cell, mean_temperature
from macl.experiments.rows import scores_of, training_figures
from macl.experiments.running import run_cell
from macl.recipes import Recipe, flatten
from macl.runs import Run


@dataclass(frozen=True)
class Trial:
    """One recipe with one seed."""

    regime: str
    """What is compared with each other has the same regime."""
    label: str
    """What differs within a regime: a loss."""
    seed: int
    recipe: str
    overrides: Mapping[str, Any] = field(hash=False)
    level_of: str | None = None
    """The label whose mean temperature, in the same regime and seed, this trial has fixed."""

    @property
    def key(self) -> tuple[str, str, int]:
        """By which a finished trial is found."""
        return self.regime, self.label, self.seed


@dataclass(frozen=True)
class Line:
    """A finished trial."""

    regime: str
    label: str
    seed: int
    recipe: str
    """Digest of the recipe's values; of paths the last part alone."""
    scores: dict[str, float]
    training: dict[str, float]
    """Means over the last epoch."""
    temperature: float | None
    """Mean over all steps; None for a loss without one."""
    seconds: float
    version: str


class Lines:
    """The finished trials of a study, by key; lines are appended and never changed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        texts = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        found = [Line(**json.loads(text)) for text in texts if text.strip()]
        self.by_key = {(line.regime, line.label, line.seed): line for line in found}

    def __iter__(self) -> Iterator[Line]:
        return iter(self.by_key.values())

    def add(self, line: Line) -> None:
        """Append a line to the file."""
        self.by_key[line.regime, line.label, line.seed] = line
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(line), ensure_ascii=False) + "\n"
        place = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(place, text.encode())  # one call: a killed process leaves no half a line
        finally:
            os.close(place)

    def values(self, regime: str, label: str, metric: str) -> dict[int, float]:
        """The values of a score or training figure by seed; "temperature" is the mean τ."""
        found = {}
        for line in self:
            if (line.regime, line.label) == (regime, label):
                both = line.training | line.scores
                if metric in both:
                    found[line.seed] = both[metric]
        return dict(sorted(found.items()))


def run_trials(
    trials: Iterable[Trial],
    lines: Lines,
    folder: Path,
    minutes: float,
    execute: Callable[[Cell], object] = run_cell,
    elsewhere: Iterable[Lines] = (),
    version: str = macl.__version__,
) -> bool:
    """Run every trial that has no line yet, in order; returns whether all have one now.

    Args:
        trials: in the order of their importance.
        lines: gets a line as each trial ends.
        folder: of the runs. A run's folder is removed when its line is written.
        minutes: no trial is begun that would probably end later than this; its time is estimated
            from the finished ones of the same regime.
        execute: trains and evaluates the recipe of a cell in its folder.
        elsewhere: lines of other studies. A recipe that ran there is copied and not run again.
        version: of the library, as lines record it.
    """
    start = time.monotonic()
    complete = True
    for trial in trials:
        recipe = resolved(trial, lines)
        if recipe is None:
            complete = False
            continue
        known = lines.by_key.get(trial.key)
        if known is not None:
            if known.recipe != digest(recipe):
                raise UserError(f"{lines.file}: {trial.key} was run with another recipe.")
            continue
        same = twin(trial, digest(recipe), [lines, *elsewhere])
        if same is not None:
            lines.add(replace(same, regime=trial.regime, label=trial.label, seconds=0.0))
            continue
        left = 60 * minutes - (time.monotonic() - start)
        if left < expected_seconds(trial, lines):
            complete = False
            continue
        lines.add(replace(run_trial(trial, recipe, folder, execute), version=version))
        print(f"{time.strftime('%H:%M:%S')} {trial.key}", flush=True)
    return complete


def resolved(trial: Trial, lines: Lines) -> Recipe | None:
    """The trial's recipe; None where it needs the temperature of a trial that is not finished."""
    recipe = recipes.load(trial.recipe, trial.overrides, {"seed": trial.seed})
    if trial.level_of is None:
        return recipe
    model = lines.by_key.get((trial.regime, trial.level_of, trial.seed))
    if model is None or model.temperature is None:
        return None
    level = float(f"{model.temperature:.6g}")
    fixed = recipe.loss.fixed_at(level)
    return recipes.override(recipe, {f"loss.{key}": value for key, value in fixed.items()})


def twin(trial: Trial, recipe: str, studies: Iterable[Lines]) -> Line | None:
    """A finished trial of the same seed and recipe under another label, in any of the studies."""
    same = (trial.seed, recipe)
    return next((line for own in studies for line in own if (line.seed, line.recipe) == same), None)


def run_trial(
    trial: Trial, recipe: Recipe, folder: Path, execute: Callable[[Cell], object] = run_cell
) -> Line:
    """Train and evaluate a trial. Its run folder is resumed if there is one, and removed after."""
    start = time.perf_counter()
    name = hashlib.sha1(repr(trial.key).encode()).hexdigest()[:16]
    cell = Cell((), trial.seed, recipe.model_dump(mode="json"), folder / name)
    execute(cell)
    run = Run(cell.folder)
    figures = training_figures(run)
    line = Line(
        trial.regime,
        trial.label,
        trial.seed,
        digest(recipe),
        rounded(scores_of(run)),
        rounded(figures),
        mean_temperature(run) if "temperature" in figures else None,
        round(time.perf_counter() - start, 1),
        macl.__version__,
    )
    shutil.rmtree(cell.folder)
    return line


def expected_seconds(trial: Trial, lines: Lines) -> float:
    """The mean time of the finished trials of the regime; 0 where there is none."""
    times = [line.seconds for line in lines if line.regime == trial.regime and line.seconds]
    return sum(times) / len(times) if times else 0.0


def digest(recipe: Recipe) -> str:
    """A short hash of what a recipe sets apart from defaults; of paths the last part alone.

    Defaults are left out so that lines stay valid when a later version has further keys.
    """
    left_out = {"name", "description", "requirements", "loggers", "save_every"}
    flat = flatten(recipe.model_dump(mode="json", exclude_defaults=True, exclude=left_out))
    values = {
        key: value.rsplit("/", 1)[-1] if isinstance(value, str) else value
        for key, value in flat.items()
    }
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha1(text.encode()).hexdigest()[:12]


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Six significant digits."""
    return {key: float(f"{value:.6g}") for key, value in values.items()}
