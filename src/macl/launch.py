"""Which of several processes this is, before torch.distributed is up."""

from __future__ import annotations

import os


def launched_rank() -> int:
    """This process' number as its launcher told it: torchrun, Lightning or SLURM; 0 when alone."""
    # An interactive SLURM shell has a SLURM_PROCID without being one of many, so it comes last.
    told = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return int(next((number for number in told if number is not None), "0"))
