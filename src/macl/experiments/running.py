"""Run the cells of a comparison: resumable, in parallel, with all failures reported at the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from macl import recipes
from macl.core.errors import UserError
from macl.core.launch import ENDS_WITH_INPUT
from macl.core.locks import Busy, lock_folder
from macl.core.progress import silence, track
from macl.core.signals import Interrupted
from macl.experiments.compare import Cell, Finished, is_finished, with_level_controls
from macl.experiments.executors import check_executor, outcomes
from macl.experiments.records import RECORDS, recorded
from macl.experiments.rows import Row
from macl.recipes import ALLOW_IMPORTS
from macl.runs import Run

WAIT = 1.0
"""Seconds between two looks at the lock of another process."""


@dataclass(frozen=True)
class How:
    """How the cells of a comparison are run."""

    jobs: int = 1
    """Cells at a time, in processes here."""
    devices: int = 1
    """GPUs, or processes, that train each cell."""
    executor: str = "local"
    """Who schedules them: see `executors`."""

    def __post_init__(self) -> None:
        if min(self.jobs, self.devices) > 1:
            raise UserError(
                "`devices=` trains one run at a time on all of them: leave `jobs=` out."
            )
        check_executor(self.executor, self.jobs)


HERE = How()

Started = Callable[[Path, int, int], None]
"""Called before the first run with the folder, how many runs there are, and how many are done."""


class CellsFailed(UserError):
    """Some cells failed; all others are finished."""


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison."""

    rows: list[Row]
    files: list[Path]
    """The tables that were written."""
    failure: CellsFailed | None
    """Which runs failed and why, where the others give a table; None: none failed."""


def announce(started: Started | None, folder: Path, cells: Sequence[Cell]) -> None:
    """Call `started` where there is something to run."""
    if started is not None and cells:
        started(folder, len(cells), sum(map(is_finished, cells)))


def run_all(
    cells: Sequence[Cell],
    how: How,
    folder: Path,
    finished: Finished | None = None,
    *,
    controls: bool = False,
) -> tuple[list[Cell], CellsFailed | None]:
    """Run the cells, then the level controls if asked for; returns all cells and the failure.

    A failure is raised where no cell is finished. `folder` is where each finished cell is recorded.
    """
    every, todo, failures = list(cells), list(cells), list[str]()
    while todo:
        try:
            run_cells(todo, how, recorded(folder / RECORDS, every, finished))
        except CellsFailed as failure:
            if not any(map(is_finished, cells)):
                raise
            failures.append(str(failure))
        known = {cell.folder for cell in every}
        every = with_level_controls(cells) if controls else every
        todo = [cell for cell in every if cell.folder not in known]
    return every, CellsFailed("\n".join(failures)) if failures else None


def run_cells(
    cells: Sequence[Cell],
    how: How = HERE,
    finished: Finished | None = None,
    work: Callable[[Cell, int], object] | None = None,
) -> None:
    """Do `work`, by default `run_cell`, for every cell that is not finished, on `how.devices`.

    At the end `CellsFailed` is raised with the folder of every cell that failed and the reason.
    """
    todo = [cell for cell in cells if not _is_done(cell)]
    attempt = partial(_attempt, how=how, work=work or run_cell)
    # A relative folder means the same in every process: they work in the same one.
    logs = cells[0].folder.parents[1] / "jobs" if cells else Path()
    ended = outcomes(attempt, todo, how.executor, how.jobs, logs)
    failed = []
    for count, (cell, reason) in enumerate(track(ended, "cells", len(todo)), start=1):
        if reason:
            failed.append(f"{cell.folder}: {reason}")
        if finished is not None:
            finished(cell, count, len(todo))
    if failed:
        raise CellsFailed(
            f"{len(failed)} of {len(cells)} runs failed; the same command tries them again:\n  "
            + "\n  ".join(failed)
        )


def _attempt(cell: Cell, how: How, work: Callable[[Cell, int], object]) -> str:
    """Run a cell while no other process does; why it failed, empty: it did not.

    What another process finished meanwhile is not run again. On a cluster, a machine that was lost
    and one that took over its cell may both be at work, and the lock of a lost machine ends after a
    while: there it is waited for. Being stopped ends all cells.
    """
    while True:
        try:
            with lock_folder(cell.folder.parent, f".{cell.folder.name}.lock", cell.folder):
                if not is_finished(cell):
                    work(cell, how.devices)
            gc.collect()  # a trainer and its model refer to each other: without this memory grows
            return ""
        except Interrupted:
            raise
        except UserError as error:
            if how.executor == "local" or not isinstance(error, Busy):
                return str(error)
        except Exception as error:
            traceback.print_exc()  # no mistake in the input but an error of the program
            return f"{type(error).__name__}: {error}"
        time.sleep(WAIT)


def _is_done(cell: Cell) -> bool:
    """Whether the cell is finished; `UserError` where what was run there is another recipe."""
    run = Run(cell.folder)
    if run.recipe_file.is_file() and recipes.without_grants(
        run.recipe.model_dump(mode="json")
    ) != recipes.without_grants(cell.recipe):
        raise UserError(
            f"{cell.folder} holds a run of another recipe. Choose another folder with `out=`, or "
            "remove that one."
        )
    return is_finished(cell)


def run_cell(cell: Cell, devices: int = 1) -> None:
    """Train (or resume) one cell, then evaluate it; the scores of its last encoder end it."""
    from macl.evaluation.score import score_run

    with silence():
        run = train_cell(cell, devices)
        # The run's own recipe permits nothing.
        recipe = recipes.resolve(cell.recipe)
        granted = {"data.download": True} if getattr(recipe.data, "download", False) else {}
        if recipe.evaluate_best and run.has_best:
            score_run(run, granted, best=True)
        score_run(run, granted)


def train_cell(cell: Cell, devices: int = 1, callbacks: Sequence[Any] = ()) -> Run:
    """Train, or resume, one cell; callbacks are Lightning's, of a training on one device."""
    from macl.training.fit import Compute, train

    if devices > 1:
        return _train_on_devices(cell, devices)
    recipe, compute = recipes.resolve(cell.recipe), Compute(progress=False)
    started = Run(cell.folder).recipe_file.is_file()
    return train(recipe, cell.folder, resume=started, compute=compute, callbacks=callbacks)


def _train_on_devices(cell: Cell, devices: int) -> Run:
    """Train, or resume, a cell with `macl train --devices`, and wait for its end.

    Data parallelism starts the command once more for every further device, and that has to be the
    command that trains, not the one that compares. When it is stopped it saves before it ends.
    """
    run = Run(cell.folder)
    if not run.recipe_file.is_file():
        run = Run.create(cell.folder, recipes.resolve(cell.recipe))
    command = [sys.executable, "-m", "macl", "train", str(cell.folder), "--resume"]
    command += ["--devices", str(devices)]
    # Whether the recipe may import code was checked when it was read for the comparison.
    environment = {**os.environ, ALLOW_IMPORTS: "1", ENDS_WITH_INPUT: "1"}
    # Nothing is ever written to its input, which ends with this process.
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stderr=pipe, text=True) as child:
        assert child.stderr is not None
        try:
            messages = child.stderr.read()
        except BaseException:
            child.terminate()
            child.stderr.read()
            raise
    if child.returncode:
        raise UserError(messages.rpartition("error: ")[2].strip())
    return run
