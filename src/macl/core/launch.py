"""The rank of this process and the number of processes, as set by torchrun, SLURM or Lightning.

Importing Lightning, which could tell it, takes seconds; the command line needs the rank first.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

ENDS_WITH_INPUT = "MACL_ENDS_WITH_INPUT"
"""Environment variable: if set, the process ends with its parent, even one killed by -9."""


def end_with_input() -> None:
    """If `ENDS_WITH_INPUT` is set, send SIGTERM to this process when its stdin, a pipe, closes."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.get(ENDS_WITH_INPUT):
        threading.Thread(target=wait, daemon=True).start()


def launched_rank(devices: int = 1) -> int:
    """The global rank, 0 without a launcher; whether it is 0 does not depend on `devices`.

    Lightning sets the rank within the node only, of which each has as many `devices`.
    """
    env = os.environ
    if "RANK" in env:
        return int(env["RANK"])
    # An interactive SLURM shell has a SLURM_PROCID too, so LOCAL_RANK takes precedence.
    if "LOCAL_RANK" not in env and "SLURM_PROCID" in env:
        return int(env["SLURM_PROCID"])
    return int(env.get("NODE_RANK", "0")) * devices + int(env.get("LOCAL_RANK", "0"))


def launch_name() -> str | None:
    """What names this launch over its restarts: a SLURM job or a job of torchrun; None: neither."""
    env = os.environ
    if "SLURM_JOB_ID" in env:
        return f"slurm {env['SLURM_JOB_ID']}"
    name = env.get("TORCHELASTIC_RUN_ID")
    if name == "none":
        name = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    return name and f"torchrun {name}"


LAUNCH = "launch"
"""The file beside the checkpoints that names the launch which began the run."""


def began(checkpoints: Path) -> bool:
    """Whether this launch began the run, and was restarted by torchrun or requeued by SLURM."""
    name, mark, env = launch_name(), checkpoints / LAUNCH, os.environ
    is_first = env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if is_first and env.get("TORCHELASTIC_RUN_ID") == "none" and "SLURM_JOB_ID" not in env:
        return False  # an earlier launch may have had this name
    return name is not None and mark.is_file() and mark.read_text(encoding="utf-8") == name


def launched_processes() -> tuple[int, int] | None:
    """(processes per node, nodes) that torchrun or srun started; None without either."""
    env = os.environ
    if "WORLD_SIZE" in env:
        world = int(env["WORLD_SIZE"])
        here = int(env.get("LOCAL_WORLD_SIZE", world))
        return here, world // here
    # One task of srun is an interactive shell, or Lightning starts the other processes from it.
    tasks, nodes = (int(env.get(f"SLURM_STEP_NUM_{what}", "1")) for what in ("TASKS", "NODES"))
    return (tasks // nodes, nodes) if tasks > 1 else None
