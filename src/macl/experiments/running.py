"""Run the cells of a comparison: resumable, side by side, each failure told at the end."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from macl import recipes
from macl.core.errors import UserError
from macl.core.progress import silence, track
from macl.core.signals import Interrupted
from macl.experiments.compare import Cell, is_finished
from macl.runs import Run


class CellsFailed(UserError):
    """Some cells failed; all others are finished."""


def run_cells(cells: Sequence[Cell], jobs: int, devices: int = 1) -> None:
    """Train and judge every cell that is not finished; finished cells are never run again.

    Args:
        cells: as planned.
        jobs: cells at a time.
        devices: GPUs, or processes, that train each cell.

    Raises:
        CellsFailed: at the end, with the folder of every cell that failed and the reason.
    """
    if min(jobs, devices) > 1:
        raise UserError("a run on several --devices has them to itself: leave --jobs out.")
    todo = [cell for cell in cells if not _is_done(cell)]
    if jobs == 1:
        reasons = {c.folder: _attempt(c, devices) for c in track(todo, "cells", len(todo))}
    else:
        with _workers(jobs) as pool:
            futures = {pool.submit(_attempt, cell): cell.folder for cell in todo}
            ended = track(as_completed(futures), "cells", len(futures))
            reasons = {futures[future]: future.result() for future in ended}
    failed = [f"{folder}: {reason}" for folder, reason in reasons.items() if reason]
    if failed:
        raise CellsFailed(
            f"{len(failed)} of {len(cells)} runs failed; the same command tries them again:\n  "
            + "\n  ".join(failed)
        )


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
                child.terminate()  # answered with a checkpoint after the step under way
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _attempt(cell: Cell, devices: int = 1) -> str:
    """Run a cell; why it failed, or nothing. Being stopped is no failure: it ends everything."""
    try:
        run_cell(cell, devices)
        gc.collect()  # a trainer and its model hold each other: without this they pile up
    except Interrupted:
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()  # nobody's mistake in the input, so whoever mends it needs this
        return f"{type(error).__name__}: {error}"
    return ""


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)  # jobs run side by side: one core each
    # A terminal sends Ctrl-C to every process; the parent hears it and ends the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on alone."""
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
    """Train (or resume) one cell, then judge it; the scores in its results.json end it."""
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
        evaluate(run)
