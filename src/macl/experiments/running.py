"""Run the cells of a comparison: resumable, in parallel, with all failures reported at the end."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from macl import recipes
from macl.core.errors import UserError
from macl.core.progress import silence, track
from macl.core.signals import Interrupted
from macl.experiments.compare import Cell, is_finished
from macl.experiments.controls import with_level_controls
from macl.experiments.merge import Shard
from macl.experiments.outcome import CellsFailed, Outcome
from macl.experiments.records import RECORDS, CellRecords
from macl.experiments.rows import tabulate
from macl.experiments.tables import write_tables
from macl.runs import Run

Finished = Callable[[Cell, int, int], None]
"""Called after each run with its cell, how many runs have ended, and of how many."""


Started = Callable[[Path, int, int], None]
"""Called before the first run with the folder, how many runs there are, and how many are done."""


def announce(started: Started | None, folder: Path, cells: Sequence[Cell]) -> None:
    """Call `started` where there is something to run."""
    if started is not None and cells:
        started(folder, len(cells), sum(map(is_finished, cells)))


def run_and_tabulate(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int = 1,
    devices: int = 1,
    *,
    metrics: Sequence[str] | None = None,
    controls: bool = False,
    finished: Finished | None = None,
) -> Outcome:
    """Run the cells of a comparison and write its tables to `folder`.

    With `controls`, the level controls of adaptive temperatures are run after the cells.
    """
    cells, failure = run_with_controls(
        cells, jobs, devices, folder / RECORDS, controls=controls, finished=finished
    )
    rows = tabulate(cells, metrics)
    return Outcome(rows, write_tables(rows, folder), failure)


def run_shard(
    cells: Sequence[Cell],
    shard: Shard,
    folder: Path,
    jobs: int = 1,
    devices: int = 1,
    *,
    controls: bool = False,
    finished: Finished | None = None,
) -> Outcome:
    """Run one part of a comparison. There is no table: nothing is looked at before the merge."""
    records = folder / shard.records_name
    _, failure = run_with_controls(
        shard.of(cells), jobs, devices, records, controls=controls, finished=finished
    )
    return Outcome([], [records], failure)


def run_with_controls(
    cells: Sequence[Cell],
    jobs: int,
    devices: int,
    records: Path,
    *,
    controls: bool = False,
    finished: Finished | None = None,
) -> tuple[list[Cell], CellsFailed | None]:
    """Run the cells, then the level controls if asked for; returns all cells and the failure.

    `records` is the file that gets a row for every cell as it finishes.
    """
    failure = run_all(cells, jobs, devices, recorded(records, cells, finished))
    if not controls:
        return list(cells), failure
    every = with_level_controls(cells)
    planned = {cell.folder for cell in cells}
    fixed = [cell for cell in every if cell.folder not in planned]
    try:
        run_cells(fixed, jobs, devices, recorded(records, every, finished))
    except CellsFailed as error:
        failure = CellsFailed("\n".join(map(str, filter(None, (failure, error)))))
    return every, failure


def recorded(file: Path, cells: Sequence[Cell], finished: Finished | None = None) -> Finished:
    """`finished`, after the row of the cell is written to `file`: see `CellRecords`."""
    records = CellRecords(file, cells)

    def record(cell: Cell, ended: int, total: int) -> None:
        records.add(cell)
        if finished is not None:
            finished(cell, ended, total)

    return record


def run_all(
    cells: Sequence[Cell], jobs: int, devices: int, finished: Finished | None = None
) -> CellsFailed | None:
    """As `run_cells`, but failures are returned as long as some cell is finished."""
    try:
        run_cells(cells, jobs, devices, finished)
    except CellsFailed as failure:
        if not any(map(is_finished, cells)):
            raise
        return failure
    return None


def run_cells(
    cells: Sequence[Cell], jobs: int, devices: int = 1, finished: Finished | None = None
) -> None:
    """Train and evaluate every cell that is not finished; finished cells are never run again.

    Args:
        cells: as planned.
        jobs: cells at a time.
        devices: GPUs, or processes, that train each cell.
        finished: called after each cell.

    Raises:
        CellsFailed: at the end, with the folder of every cell that failed and the reason.
    """
    if min(jobs, devices) > 1:
        raise UserError("--devices trains one run at a time on all of them: leave --jobs out.")
    todo = [cell for cell in cells if not _is_done(cell)]
    reasons: dict[Path, str] = {}
    for cell, reason in track(_attempts(todo, jobs, devices), "cells", len(todo)):
        reasons[cell.folder] = reason
        if finished is not None:
            finished(cell, len(reasons), len(todo))
    failed = [f"{folder}: {reason}" for folder, reason in reasons.items() if reason]
    if failed:
        raise CellsFailed(
            f"{len(failed)} of {len(cells)} runs failed; the same command tries them again:\n  "
            + "\n  ".join(failed)
        )


def _attempts(cells: Sequence[Cell], jobs: int, devices: int) -> Iterator[tuple[Cell, str]]:
    """Every cell, as it ends, with why it failed."""
    if jobs == 1:
        for cell in cells:
            yield cell, _attempt(cell, devices)
        return
    with _workers(jobs) as pool:
        futures = {pool.submit(_attempt, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, whatever ends it."""
    # Spawned, not forked: a fork would inherit torch's thread pools in an unknown state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died (out of memory?). Finished runs are kept: give the same "
                "command again, with fewer --jobs."
            ) from error
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()  # it saves a checkpoint after the current step
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _attempt(cell: Cell, devices: int = 1) -> str:
    """Run a cell and return why it failed; empty: it did not. Being stopped ends all cells."""
    try:
        run_cell(cell, devices)
        gc.collect()  # a trainer and its model refer to each other: without this memory grows
    except Interrupted:
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()  # no mistake in the input but an error of the program
        return f"{type(error).__name__}: {error}"
    return ""


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)  # jobs run side by side: one core each
    # A terminal sends Ctrl-C to every process; the parent handles it and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _is_done(cell: Cell) -> bool:
    """Whether the cell is finished; `UserError` where what was run there is another recipe."""
    run = Run(cell.folder)
    if run.recipe_file.is_file() and run.recipe != recipes.resolve(cell.recipe):
        raise UserError(
            f"{cell.folder} holds a run of another recipe. Choose another --out, or remove that "
            "folder."
        )
    return is_finished(cell)


def run_cell(cell: Cell, devices: int = 1) -> None:
    """Train (or resume) one cell, then evaluate it; the scores of its last encoder end it."""
    from macl.evaluation.evaluate import evaluate
    from macl.experiments.devices import train_on_devices
    from macl.training.fit import Compute, train

    started = (cell.folder / "recipe.yaml").is_file()
    recipe = recipes.resolve(cell.recipe)
    with silence():
        if devices > 1:
            run = train_on_devices(recipe, cell.folder, devices)
        else:
            run = train(recipe, cell.folder, resume=started, compute=Compute(progress=False))
        if recipe.evaluate_best and run.has_best:
            evaluate(run, best=True)
        evaluate(run)
