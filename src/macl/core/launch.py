"""The rank of this process and the number of processes, as set by torchrun, SLURM or Lightning.

Lightning's environment plug-ins are not used: importing them takes seconds, and the command line
needs the rank first, to print from one process only; and they do not report the number of nodes.
"""

from __future__ import annotations

import os
import signal
import threading

ENDS_WITH_INPUT = "MACL_ENDS_WITH_INPUT"
"""Environment variable: if set, the process stops when its standard input is closed."""


def end_with_input() -> None:
    """If `ENDS_WITH_INPUT` is set, send SIGTERM to this process when its stdin is closed.

    The operating system closes the pipe however the parent ended, `kill -9` included.
    """
    if os.environ.get(ENDS_WITH_INPUT):
        threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def launched_rank(devices: int = 1) -> int:
    """The global rank of this process; 0 without a launcher.

    Lightning sets the rank within the node only: the global rank follows from the number of
    `devices` per node. Whether it is 0 does not depend on that number.
    """
    env = os.environ
    if "RANK" in env:
        return int(env["RANK"])
    # An interactive SLURM shell has a SLURM_PROCID too, so LOCAL_RANK takes precedence.
    if "LOCAL_RANK" not in env and "SLURM_PROCID" in env:
        return int(env["SLURM_PROCID"])
    return int(env.get("NODE_RANK", "0")) * devices + int(env.get("LOCAL_RANK", "0"))


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
