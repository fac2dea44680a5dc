"""Runs of a few seconds, for every test that needs one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import macl
import recipe_texts
from forking import Forked
from macl.core.checkpoints import SafeCheckpointIO
from macl.recipes import Recipe
from macl.runs import Run
from macl.training.fit import Compute

HERE = Compute(accelerator="cpu", progress=False)

TINY = (
    "epochs=2",
    "data.limit=200",
    "batch_size=32",
    "encoder.width=8",
    "schedule.warmup_epochs=0.5",
    "save_every=3",
    "monitor_every=1",
)
"""The digits recipe in 2 epochs of 6 steps."""

METHODS = {
    "simclr": (),
    # A queue that wraps around at the second batch.
    "moco": ("method=moco", "method.queue_size=48", "method.bn_splits=2"),
    "nnclr": ("method=nnclr", "method.queue_size=48", "method.predictor.widths=[32,same]"),
}


def recipe(*overrides: str) -> Recipe:
    """The tiny digits recipe, with more overrides."""
    return recipe_texts.load("digits", [*TINY, *overrides])


def state_of(run: Run) -> dict[str, Any]:
    """The last checkpoint of a run."""
    return SafeCheckpointIO().load_checkpoint(run.last_checkpoint)


def assert_same(one: Any, two: Any, where: str = "") -> None:
    """Nested values are equal to the bit."""
    assert type(one) is type(two), where
    if isinstance(one, Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for i, pair in enumerate(zip(one, two, strict=True)):
            assert_same(*pair, f"{where}/{i}")
    else:
        assert one == two, where


class Command(NamedTuple):
    """`macl ARGUMENTS` with these environment variables."""

    arguments: Sequence[str | Path]
    environment: Mapping[str, str] = {}


class Done(NamedTuple):
    """How a command ended; a negative code is the signal that ended it."""

    code: int
    stderr: str


def run_commands(*commands: Command) -> list[Done]:
    """Run `macl` commands one after the other, each in a process of its own."""
    ended = (forked_macl(*arguments, variables=variables) for arguments, variables in commands)
    return [Done(done.returncode, done.stderr) for done in ended]


def forked_macl(
    *arguments: str | Path, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """`macl ARGUMENTS` in a process of its own, which need not import torch and lightning."""
    return Forked("macl_script.py", *arguments, environment=environment(variables)).wait()


def run_ranks(script: str | Path, *arguments: str | Path) -> list[subprocess.CompletedProcess[str]]:
    """A script in two processes that know each other, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "tests", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    ranks = [
        Forked(script, *arguments, environment=environment({**common, "RANK": n, "LOCAL_RANK": n}))
        for n in "01"
    ]
    return [rank.wait() for rank in ranks]


def python(script: str, *arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """A script by its path from this folder, in a new interpreter that finds macl and us."""
    return subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *map(str, arguments)],
        env=environment(more.pop("environment", {})),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """The variables of a new interpreter that finds macl and us, and computes in one thread."""
    paths = [str(Path(macl.__file__).parents[1]), str(Path(__file__).parent)]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **variables, **more}
