"""The losses on the Triton kernels, interpreted: in a process of its own, as Triton demands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.language", reason="triton is not installed; its kernels cannot run")

import macl

HERE = Path(__file__).parent


@pytest.mark.slow
def test_losses_on_the_interpreter() -> None:
    folders = [Path(macl.__file__).parents[1], HERE, HERE.parent]
    settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    settings["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_losses.py")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) >= 60
    assert {name: r for name, r in results.items() if not r[0] < 1e-5} == {}
    assert {name: r for name, r in results.items() if r[1] < 2} == {}  # a forward, a backward
