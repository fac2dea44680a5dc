"""Where tasks run: in processes here, as SLURM jobs by submitit, or on a cluster by ray.

One interface: a function and its tasks in, (task, result) out, as each ends. The engines schedule,
retry and place; a task must be safe to run again, and its files on a file system that all share.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Generic, TypeVar

from macl.core.errors import UserError, nearest
from macl.core.installed import require

T = TypeVar("T")
R = TypeVar("R")

EXECUTORS = ("local", "submitit", "ray")
DAYS = 7
"""Time limit of a SLURM job, unless the variable SBATCH_TIMELIMIT sets another."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable of CUDA and ROCm: the GPUs that a process may use."""


def visible_gpus() -> list[str]:
    """The GPUs of this process, as `VISIBLE` names them; empty on a machine without one."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[:count] or [str(number) for number in range(count)]


def count_jobs(jobs: int | str) -> int:
    """Runs at a time; "auto": one for each GPU, or on a machine without one for each core."""
    if jobs == "auto":
        return len(visible_gpus()) or len(os.sched_getaffinity(0))
    number = int(jobs) if str(jobs).isdecimal() else 0
    if number < 1:
        raise UserError(f"`jobs=` is a number from 1 on, or auto; not {jobs}.")
    return number


def check_executor(name: str, jobs: int = 1) -> None:
    """`UserError` for an unknown executor, or one that is not installed or takes no `jobs`."""
    if name not in EXECUTORS:
        raise UserError(f"`executor=` {name}: there is no such one.{nearest(name, EXECUTORS)}")
    if name != "local":
        require(name, "cluster")
        if jobs > 1:
            raise UserError(f"`jobs=` is for processes here: with `executor={name}` it decides.")


def outcomes(
    function: Callable[[T], R], tasks: Sequence[T], executor: str, jobs: int, logs: Path
) -> Iterator[tuple[T, R]]:
    """Every task with its result, as they end.

    The function can be pickled, and so can tasks and results. `jobs` are processes, for "local";
    `logs` is a folder for what "submitit" writes of its jobs.
    """
    if (executor == "local" and jobs == 1) or not tasks:
        return ((task, function(task)) for task in tasks)
    if executor == "local":
        return _in_processes(function, tasks, jobs)
    engine = {"submitit": _by_submitit, "ray": _by_ray}[executor]
    return engine(_Elsewhere(function), tasks, logs)


class _Elsewhere(Generic[T, R]):
    """The function, in the folder and with the permissions of the process that sends it."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self.function, self.folder = function, os.getcwd()
        self.variables = {k: v for k, v in os.environ.items() if k.startswith("MACL_")}

    def __call__(self, task: T) -> R:
        os.chdir(self.folder)
        os.environ.update(self.variables)
        return self.function(task)

    def checkpoint(self, task: T) -> Any:
        """What submitit sends again when SLURM takes the machine away or its time ends."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


def _in_processes(
    function: Callable[[T], R], tasks: Sequence[T], jobs: int
) -> Iterator[tuple[T, R]]:
    """Processes that end with this one, whatever ends it."""
    # Spawned, not forked: a fork would inherit torch's thread pools in an unknown state.
    context = multiprocessing.get_context("spawn")
    gpus, in_turn = visible_gpus(), context.SimpleQueue()
    for number in range(jobs):
        in_turn.put(gpus[number % len(gpus)] if gpus else "")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_worker, initargs=(in_turn,)
    ) as pool:
        try:
            futures = {pool.submit(function, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died (out of memory?). Finished runs are kept: give the same "
                "command again, with fewer `jobs=`."
            ) from error
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()  # it saves a checkpoint after the current step
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker(gpus: SimpleQueue[str]) -> None:
    """Leave this process one of the GPUs, before the first use of CUDA, which reads them once."""
    import torch

    if gpu := gpus.get():
        os.environ[VISIBLE] = gpu
    torch.set_num_threads(1)  # jobs run side by side: one core each
    # A terminal sends Ctrl-C to every process; the parent handles it and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:  # which may be killed
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _by_submitit(
    function: _Elsewhere[T, R], tasks: Sequence[T], logs: Path
) -> Iterator[tuple[T, R]]:
    """An array of SLURM jobs, one GPU each; processes where SLURM is not.

    sbatch reads partition, account, time limit and more from variables: SBATCH_PARTITION, …;
    SBATCH_GRES=none is for machines without a GPU.
    """
    import submitit

    executor = submitit.AutoExecutor(folder=logs)
    executor.update_parameters(timeout_min=DAYS * 24 * 60)
    if executor.cluster == "slurm" and "SBATCH_GRES" not in os.environ:
        executor.update_parameters(gpus_per_node=1)
    jobs = dict(zip(executor.map_array(function, tasks), tasks, strict=True))
    try:
        for job in submitit.helpers.as_completed([*jobs], poll_frequency=1):
            try:
                yield jobs[job], job.result()
            except submitit.core.utils.UncompletedJobError as error:
                raise UserError(
                    f"job {job.job_id} ended without a result; its output is in "
                    f"{job.paths.stderr}. Give the same command again."
                ) from error
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


def _by_ray(function: _Elsewhere[T, R], tasks: Sequence[T], logs: Path) -> Iterator[tuple[T, R]]:
    """Tasks of ray, one GPU each where the cluster has any; those of a lost machine run again.

    It joins the cluster that RAY_ADDRESS names or that runs here; else ray starts one here.
    """
    import ray

    joined = not ray.is_initialized()
    if joined:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to its makers
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    needs = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
    remote = ray.remote(max_retries=-1, **needs)(lambda function, task: function(task))
    sent = ray.put(function)
    waiting = {remote.remote(sent, task): task for task in tasks}
    try:
        while waiting:
            (done,), _ = ray.wait([*waiting], num_returns=1)
            yield waiting.pop(done), ray.get(done)
    except BaseException:
        for each in waiting:
            ray.cancel(each, force=True)
        raise
    finally:
        if joined:
            ray.shutdown()
