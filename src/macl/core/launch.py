"""Which of several processes this is, of how many, and with whom it ends."""

from __future__ import annotations

import os
import signal
import threading

ENDS_WITH_INPUT = "MACL_ENDS_WITH_INPUT"
"""Set in the environment of a process that is to end when its standard input does."""


def end_with_input() -> None:
    """Where it was asked for, stop in order when whoever holds the other end of stdin is gone.

    However that one ended, `kill -9` included: the system closes what a dead process held.
    """
    if os.environ.get(ENDS_WITH_INPUT):
        threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def launched_rank(devices: int = 1) -> int:
    """This process' number as its launcher told it: torchrun, SLURM or Lightning; 0 when alone.

    Lightning counts the processes of every node from 0 and does not tell how many `devices` a node
    has. Whether this process is the first of all can be told without.
    """
    told = os.environ
    if "RANK" in told:
        return int(told["RANK"])
    # An interactive SLURM shell has a SLURM_PROCID without being one of many, so it comes second.
    if "LOCAL_RANK" not in told and "SLURM_PROCID" in told:
        return int(told["SLURM_PROCID"])
    return int(told.get("NODE_RANK", "0")) * devices + int(told.get("LOCAL_RANK", "0"))


def launched_processes() -> tuple[int, int] | None:
    """(processes on each node, nodes) as torchrun or srun started them; None where neither did."""
    told = os.environ
    if "WORLD_SIZE" in told:
        world = int(told["WORLD_SIZE"])
        here = int(told.get("LOCAL_WORLD_SIZE", world))
        return here, world // here
    # Of one task srun is a shell, or a place from where Lightning starts the others.
    tasks, nodes = (int(told.get(f"SLURM_STEP_NUM_{what}", "1")) for what in ("TASKS", "NODES"))
    return (tasks // nodes, nodes) if tasks > 1 else None
