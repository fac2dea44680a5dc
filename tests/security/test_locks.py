"""Two at once: one of them is refused, and learns who the other is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny
from macl import api
from macl.core.errors import UserError
from macl.core.files import atomic_folder
from macl.core.locks import LOCK, STALE, lock_folder
from macl.training.fit import train

HOLD = """
import sys, time
from pathlib import Path
from macl.core.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = holder(folder)
    recipe = tiny.recipe("epochs=1", "data.limit=70", "monitor_every=0")
    try:
        who = rf"written by process {process.pid} on {socket.gethostname()}, since 20"
        with pytest.raises(UserError, match=who):
            train(recipe, folder, compute=tiny.HERE)
        with pytest.raises(UserError, match=who):
            api.run_comparison("digits", out=folder)
        with pytest.raises(UserError, match=who):
            api.adapt("resnet8", tmp_path, out=folder)
        assert os.listdir(folder) == [LOCK]
    finally:
        process.kill()
        process.wait()
    assert (folder / LOCK).exists()
    assert train(recipe, folder, compute=tiny.HERE).is_finished
    assert not (folder / LOCK).exists()


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"):
        train(tiny.recipe(), tmp_path, compute=tiny.HERE)
    with atomic_folder(tmp_path / "out"):
        again = atomic_folder(tmp_path / "out")
        with pytest.raises(UserError, match=r"out is being written by"), again:
            pass
        with atomic_folder(tmp_path / "other"):
            pass
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]


@pytest.mark.parametrize(("age", "refused"), [(0, True), (STALE / 2, True), (2 * STALE, False)])
def test_a_lock_of_another_host_counts_while_it_is_touched(
    age: float, refused: bool, tmp_path: Path
) -> None:
    """Record locks do not reach every machine that shares a file system."""
    file = tmp_path / LOCK
    file.write_text(json.dumps({"host": "node-7", "pid": 12, "since": "2026-01-01 00:00:00"}))
    os.utime(file, (time.time() - age,) * 2)
    if refused:
        words = "process 12 on node-7, since 2026-01-01"
        with pytest.raises(UserError, match=words), lock_folder(tmp_path):
            pass
    else:
        with lock_folder(tmp_path):
            assert json.loads(file.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", ["", "[" * 5000, '{"host": 3}', "\0"])
def test_a_strange_lock_is_taken_over_or_refused_and_never_written_to(
    content: str, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text(content)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).hardlink_to(victim)
    os.utime(victim, (1, 1))
    with lock_folder(folder):
        pass
    (folder / LOCK).symlink_to(victim)
    with pytest.raises(UserError, match="could not lock"), lock_folder(folder):
        pass
    assert victim.read_text() == content


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limit"):
        train(tiny.recipe("data.limit=1"), tmp_path / "runs" / "a", compute=tiny.HERE)
    assert os.listdir(tmp_path) == []
