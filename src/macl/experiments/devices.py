"""The devices of a comparison: one for each of its workers, or several for each of its runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from macl.core.errors import UserError
from macl.core.launch import ENDS_WITH_INPUT
from macl.recipes import ALLOW_IMPORTS, Recipe
from macl.runs import Run

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


def take_gpu(numbers: SimpleQueue[int], gpus: Sequence[str]) -> None:
    """Leave this process one of the GPUs, in turn; `numbers` gives each process its own number.

    Before the first use of CUDA, which reads the variable once.
    """
    number = numbers.get()
    if gpus:
        os.environ[VISIBLE] = gpus[number % len(gpus)]


def train_on_devices(recipe: Recipe, folder: Path, devices: int) -> Run:
    """Train, or resume, `recipe` in `folder` with `macl train --devices`, and wait for its end.

    Data parallelism starts the command once more for every further device, and that has to be the
    command that trains, not the one that compares. When it is stopped it saves before it ends.
    """
    run = Run(folder)
    if not run.recipe_file.is_file():
        run = Run.create(folder, recipe)
    command = [sys.executable, "-m", "macl", "train", str(folder), "--resume"]
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
