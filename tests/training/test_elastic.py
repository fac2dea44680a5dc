"""Restarted launches continue by themselves: torchrun's restarts, and SLURM's requeue."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_ddp import EXACT

from macl.core import launch
from macl.core.signals import StopSignals
from macl.runs import Run
from macl.training.fit import train
from macl.training.resume import mark_launch
from tiny import HERE, TINY, assert_same, environment, forked_macl, recipe, state_of


def test_a_run_belongs_to_the_launch_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    run = Run(tmp_path)
    mark_launch(run)
    assert launch.launch_name() is None
    assert not launch.began(run.last_checkpoint.parent)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    mark_launch(run)
    assert launch.began(run.last_checkpoint.parent)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "b")
    assert not launch.began(run.last_checkpoint.parent)
    # Without an id of its own every launch has the same name: only a restart is the same launch.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    mark_launch(run)
    assert not launch.began(run.last_checkpoint.parent)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert launch.began(run.last_checkpoint.parent)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not launch.began(run.last_checkpoint.parent)
    mark_launch(run)
    assert launch.began(run.last_checkpoint.parent)


STOPPED = """
import os, signal, sys
from pathlib import Path
import lightning.pytorch as pl
from macl.core.signals import Interrupted
from macl.training.fit import train
from tiny import HERE, recipe

class Announced(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 4:
            os.kill(os.getpid(), signal.SIGUSR1)

try:
    train(recipe("monitor_every=0"), Path(sys.argv[1]), compute=HERE, callbacks=[Announced()])
except Interrupted as stop:
    sys.exit(f"stopped by {stop}")
"""


@pytest.mark.slow
def test_the_signal_before_the_end_of_a_slurm_job_saves_and_requeues(tmp_path: Path) -> None:
    """And the requeued job ends the run, without being asked to resume it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    scontrol = programs / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    script = tmp_path / "job.py"
    script.write_text(STOPPED)
    variables = environment(
        {"SLURM_JOB_ID": "77", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    )
    command = [sys.executable, str(script), str(tmp_path / "run")]
    first = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280)
    assert "stopped by SIGUSR1" in first.stderr
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    assert state_of(Run(tmp_path / "run"))["global_step"] == 4
    again = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280)
    assert again.returncode == 0, again.stderr
    assert Run(tmp_path / "run").is_finished
    assert state_of(Run(tmp_path / "run"))["global_step"] == 12


ONLY_ROOT = "network namespaces need root, and `ip` of iproute2"
RESULT = (*TINY, *EXACT, "save_every=1", "monitor_every=0")


def ip(*arguments: str) -> bool:
    """Whether `ip ARGUMENTS` succeeded."""
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


class Machines:
    """Two network namespaces with a cable between them, and a torchrun in each."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("ip") is None:
            pytest.skip(ONLY_ROOT)
        self.folder, mark = folder, f"macl{os.getpid() % 10000}"
        self.names = [f"{mark}a", f"{mark}b"]
        self.agents: list[subprocess.Popen[bytes]] = []
        if not all(ip("netns", "add", name) for name in self.names):
            self.close()
            pytest.skip(ONLY_ROOT)
        one, two = self.names
        made = ip("link", "add", "cable", "netns", one, "type", "veth",
                  "peer", "name", "cable", "netns", two)  # fmt: skip
        for number, name in enumerate(self.names, 1):
            made &= ip("-n", name, "addr", "add", f"10.98.0.{number}/24", "dev", "cable")
            made &= ip("-n", name, "link", "set", "cable", "up")
            made &= ip("-n", name, "link", "set", "lo", "up")
        if not made:
            self.close()
            pytest.skip("this machine has no virtual network cables")

    def launch(self, number: int, nodes: str, **variables: str) -> None:
        """torchrun on a machine: one process, of as many as there are `nodes`."""
        settings = environment(
            {"GLOO_SOCKET_IFNAME": "cable", "FRAGILE_SECONDS": "0.3", **variables}
        )
        command = [
            "ip", "netns", "exec", self.names[number],
            sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes,
            "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "10.98.0.1:29400", "--rdzv-id", "elastic",
            "--monitor-interval", "0.2", "--local-addr", f"10.98.0.{number + 1}",
            "--rdzv-conf", f"last_call_timeout=30,is_host={int(not number)}",
            str(Path(__file__).parents[1] / "macl_script.py"), "train", "digits", *RESULT,
            "--out", str(self.folder),
        ]  # fmt: skip
        log = (self.folder.parent / f"{number}.log").open("wb")
        self.agents.append(
            subprocess.Popen(command, env=settings, stdout=log, stderr=log, start_new_session=True)
        )

    def wait_for(self, step: int, seconds: float = 240) -> None:
        """Until the checkpoint has that many steps."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                if state_of(Run(self.folder))["global_step"] >= step:
                    return
            time.sleep(0.1)
        pytest.fail(f"no step {step}:\n{self.logs()}")

    def cut(self, seconds: float) -> None:
        """Unplug the cable for a while."""
        ip("-n", self.names[0], "link", "set", "cable", "down")
        time.sleep(seconds)
        ip("-n", self.names[0], "link", "set", "cable", "up")

    def lose(self, number: int) -> None:
        """Switch a machine off: end every process in it."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[number]], capture_output=True, text=True
        )
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def ended(self, number: int) -> int:
        """The exit code of a machine's torchrun."""
        return self.agents[number].wait(300)

    def logs(self) -> str:
        """What the machines printed last."""
        files = sorted(self.folder.parent.glob("*.log"))
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files)

    def close(self) -> None:
        for number, name in enumerate(self.names):
            self.lose(number)
            ip("netns", "del", name)
        for agent in self.agents:
            agent.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path / "run")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_two_machines_survive_a_killed_process_and_a_cut_cable(
    machines: Machines, tmp_path: Path
) -> None:
    """The result is, to the bit, that of two processes which nothing disturbed."""
    machines.launch(0, "2")
    # Its ninth step is its last; the restarted process has fewer left.
    machines.launch(1, "2", FRAGILE_AT="9", FRAGILE_SIGNAL="9")
    machines.wait_for(2)
    machines.cut(2)
    assert [machines.ended(0), machines.ended(1)] == [0, 0], machines.logs()
    whole = Run(tmp_path / "whole")
    done = forked_macl(
        "train", "digits", *RESULT, "--out", whole.folder, "--devices", "2",
        variables={"GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same(*(state_of(run)["state_dict"] for run in (Run(machines.folder), whole)))
    assert Run(machines.folder).metrics() == whole.metrics()
    if "exitcode: -9" not in machines.logs() and "Signal 9" not in machines.logs():
        pytest.skip("late heartbeats of a busy machine restarted the process before its ninth step")


@pytest.mark.slow
def test_a_lost_machine_leaves_the_run_to_the_other(machines: Machines, tmp_path: Path) -> None:
    """Which ends it alone, with another number of processes and the same result."""
    for number in (0, 1):
        machines.launch(number, "1:2")
    machines.wait_for(3)
    machines.lose(1)
    assert machines.ended(0) == 0, machines.logs()
    whole = train(recipe(*RESULT), tmp_path / "whole", compute=HERE)
    found, expected = (state_of(run)["state_dict"] for run in (Run(machines.folder), whole))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8, msg=name)


def test_outside_of_slurm_nothing_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    signals = StopSignals()
    signals.asked = "SIGTERM"
    signals.requeue()
