"""The cells of the temperature study, the records of those that ran, and which come next."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temperature_settings import TASKS, Method, Setting, Task, control, methods

KEY = ("task", "stage", "setting", "sizes", "seed")
FIGURES = ("temperature", "temperature_std", "at_bound", "gradient_scale", "effective_anchors")
COLUMNS = (*KEY, "method", "level", *FIGURES, "scores", "seconds", "version")

Row = dict[str, str]


@dataclass(frozen=True)
class Cell:
    """One training with its evaluation. `stage` is "choose" (on validation) or "test"."""

    task: str
    stage: str
    method: str
    setting: Setting
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """What the cell is known by: equal keys are the same run, whatever method asks for it."""
        task = TASKS[self.task]
        return (self.task, self.stage, text(self.setting), text(self.sizes(task)), str(self.seed))

    def sizes(self, task: Task) -> dict[str, Any]:
        """The overrides, but for the loss and the seed."""
        return {**task.sizes, **(task.choose if self.stage == "choose" else {})}


def text(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


class Records:
    """The rows of the finished cells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], Row] = {}
        if path.is_file():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self.rows[tuple(row[name] for name in KEY)] = row

    def get(self, cell: Cell) -> Row | None:
        return self.rows.get(cell.key)

    def add(self, cell: Cell, figures: dict[str, Any]) -> None:
        row = {**dict(zip(KEY, cell.key, strict=True)), "method": cell.method, **figures}
        self.rows[cell.key] = {name: str(row.get(name, "")) for name in COLUMNS}
        new = not self.path.is_file()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(self.rows[cell.key])

    def seconds(self, task: str) -> float:
        """The median time of a cell of the task so far; 0 where none has run."""
        found = [float(row["seconds"]) for row in self.rows.values() if row["task"] == task]
        return statistics.median(found) if found else 0.0


def value(row: Row, score: str) -> float:
    return float(json.loads(row["scores"]).get(score, "nan"))


def chosen(records: Records, name: str, method: str, own: Method) -> Setting | None:
    """The candidate with the best score on validation; None before all of them have run."""
    task = TASKS[name]
    cells = [Cell(name, "choose", method, each, 0) for each in own.candidates]
    rows = [records.get(cell) for cell in cells]
    if len(cells) == 1:
        return own.candidates[0]
    if not all(rows):
        return None
    order = ("monitor", *task.scores)
    best = max(
        range(len(rows)), key=lambda k: [value(rows[k] or {}, s) for s in _known(rows[k], order)]
    )
    return own.candidates[best]


def _known(row: Row | None, names: tuple[str, ...]) -> list[str]:
    scores = json.loads((row or {}).get("scores", "{}"))
    return [name for name in names if name in scores]


def level(records: Records, cells: list[Cell]) -> float | None:
    """The mean τ over the trainings of all seeds; None before all of them have run."""
    rows = [row for cell in cells if (row := records.get(cell))]
    found = [float(row["level"]) for row in rows if row["level"]]
    return statistics.fmean(found) if len(found) == len(cells) else None


def seeded(name: str, method: str, setting: Setting) -> list[Cell]:
    return [Cell(name, "test", method, setting, seed) for seed in range(TASKS[name].seeds)]


def plan(records: Records, name: str) -> Iterator[Cell]:
    """The cells of a task in the order of the study; later ones depend on the rows of the first."""
    known = methods(TASKS[name])
    for method, own in known.items():
        if len(own.candidates) > 1:
            for setting in own.candidates:
                yield Cell(name, "choose", method, setting, 0)
    for method, own in known.items():
        if (setting := chosen(records, name, method, own)) is not None:
            yield from seeded(name, method, setting)
    # The controls of the methods that adapt τ come first: the study is about them.
    for method, own in sorted(known.items(), key=lambda item: not item[1].adapts):
        setting = chosen(records, name, method, own)
        fixed = setting and own.has_level and control_of(records, name, method, setting)
        if fixed:
            yield from seeded(name, f"{method}, control", fixed)


def control_of(records: Records, name: str, method: str, setting: Setting) -> Setting | None:
    """The control's setting; None before the method has run with all seeds."""
    at = level(records, seeded(name, method, setting))
    return None if at is None else control(setting, at)


def cells_of(name: str) -> int:
    """The number of cells of a task, if no control is another cell already."""
    task = TASKS[name]
    known = methods(task).values()
    choose = sum(len(own.candidates) for own in known if len(own.candidates) > 1)
    return choose + task.seeds * (len(known) + sum(own.has_level for own in known))
