"""Commands that are killed at any instant, and given again: the script, a few times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from macl.core.signals import StopSignals

SCRIPT = Path(__file__).parents[1] / "long" / "kill_commands.py"


@pytest.mark.slow
def test_a_command_after_a_kill_gives_what_an_undisturbed_one_gives() -> None:
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--times", "7"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all equal") == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_stop_is_recorded(number: signal.Signals) -> None:
    """The training then ends after its step, with a checkpoint; a closed terminal sends SIGHUP."""
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        assert signals.asked == number.name
