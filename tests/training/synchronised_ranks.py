"""Two processes train a run for each case and write down in which steps they read values."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_synchronisation import CASES, LONG, counted, take_for_accelerator

from macl.training.fit import train
from tiny import HERE, recipe


def train_here(folder: Path) -> None:
    """The share of one process."""
    found = []
    for number, overrides in enumerate(CASES):
        with pytest.MonkeyPatch.context() as patch, counted(patch) as reads:
            take_for_accelerator(patch)
            train(recipe(*LONG, *overrides), folder / str(number), compute=HERE)
        steps, files = zip(*reads.places, strict=True)
        found.append({"steps": steps, "files": files})
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def launch(folder: str) -> int:
    """Start this file again in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr",
                "127.0.0.1", "--master-port", port)  # fmt: skip
    return subprocess.run([sys.executable, *launcher, __file__, folder], check=False).returncode


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(launch(sys.argv[1]))
    train_here(Path(sys.argv[1]))
