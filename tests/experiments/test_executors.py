"""Tasks on engines: SLURM's stand-in by submitit, a cluster of ray, cells that run once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image
from test_compare_parts import TINY, VARY, finished_cell

import macl
import recipe_texts
from macl import api
from macl.core.errors import UserError
from macl.core.locks import lock_folder
from macl.experiments import running
from macl.experiments.compare import Cell
from macl.experiments.executors import check_executor, outcomes
from macl.experiments.running import How
from shared import trained
from test_parts import tables
from tiny import environment, recipe


def double(number: int) -> tuple[int, str, str | None]:
    return 2 * number, os.getcwd(), os.environ.get("MACL_LIMIT_DEPTH")


def planned(out: Path) -> list[Cell]:
    return recipe_texts.plan("digits", ["loss=nt-xent,macl"], 1, ["epochs=1"], out)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`executor=` slurm.*local, ray, submitit"):
        check_executor("slurm")
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="`jobs=` is for processes here"):
        How(jobs=2, executor="ray")
    with pytest.raises(UserError, match="leave `jobs=` out"):
        How(2, 2)


def test_a_cell_of_another_process_is_waited_for_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that holds the lock ends the cell meanwhile."""
    cell = planned(tmp_path)[0]
    monkeypatch.setattr(running, "WAIT", 0.01)
    held, release = threading.Event(), threading.Event()

    def other() -> None:
        with lock_folder(cell.folder.parent, f".{cell.folder.name}.lock", cell.folder):
            held.set()
            release.wait(10)
            finished_cell(cell, 50.0)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(10)
    ran: list[Cell] = []
    how = How.__new__(How)
    object.__setattr__(how, "executor", "ray")
    object.__setattr__(how, "devices", 1)
    assert "is being written by" in running._attempt(cell, How(), lambda *_: ran.append(cell))
    threading.Timer(0.1, release.set).start()
    assert running._attempt(cell, how, lambda *_: ran.append(cell)) == ""
    thread.join()
    assert ran == []


def test_submitit_runs_tasks_where_they_were_sent_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"] + f":{Path(__file__).parent}")
    monkeypatch.setenv("MACL_LIMIT_DEPTH", "99")
    monkeypatch.chdir(tmp_path)
    found = dict(outcomes(double, [1, 2], "submitit", 1, tmp_path / "logs"))
    assert found == {n: (2 * n, str(tmp_path), "99") for n in (1, 2)}


@pytest.mark.slow
def test_a_comparison_by_submitit_equals_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = {"seeds": 1, "overrides": TINY, "control": "level"}
    here = api.run_comparison("digits", VARY, out=tmp_path / "here", **options)
    there = api.run_comparison(
        "digits", VARY, out=tmp_path / "there", executor="submitit", **options
    )
    assert there.rows == here.rows


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two workers of ray on this machine."""
    ray = pytest.importorskip("ray")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=10**8,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()


@pytest.mark.slow
def test_a_comparison_by_ray_survives_killed_workers(tmp_path: Path, ray_cluster: None) -> None:
    """Ten times the process that holds the lock of some cell is killed."""
    options = {"seeds": 3, "overrides": {**TINY, "epochs": 6, "save_every": 1}}
    here = api.run_comparison("digits", VARY, out=tmp_path / "here", **options)
    chance, killed, ended = random.Random(0), [], threading.Event()

    def kill() -> None:
        while len(killed) < 10 and not ended.wait(0.3 * chance.random()):
            locks = list((tmp_path / "there" / "runs").glob(".*.lock"))
            with suppress(OSError, ValueError, IndexError):
                pid = json.loads(chance.choice(locks).read_text())["pid"]
                if pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        there = api.run_comparison(
            "digits", VARY, out=tmp_path / "there", executor="ray", **options
        )
    finally:
        ended.set()
        thread.join()
    assert len(killed) == 10
    assert there.rows == here.rows


@pytest.mark.slow
def test_parts_by_ray_equal_those_made_here(tmp_path: Path, ray_cluster: None) -> None:
    run = trained(recipe("epochs=1"))
    (tmp_path / "pictures").mkdir()
    for number in range(9):
        Image.new("RGB", (8, 8), (20 * number, 100, 0)).save(tmp_path / f"pictures/{number}.png")
    for name, executor in (("here", "local"), ("there", "ray")):
        given = {"part_items": 2, "executor": executor}
        macl.embed_parts(run.folder, tmp_path / "pictures", tmp_path / name, **given)
    assert tables(tmp_path / "there") == tables(tmp_path / "here")


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, macl.api.experiments, macl.experiments.running, macl.runs.index\n"
        "print({'ray', 'submitit', 'optuna', 'faiss', 'lancedb'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.slow
def test_the_defaults_of_every_command_import_no_engine(tmp_path: Path) -> None:
    """They are run, in a process of its own."""
    run = trained(recipe("epochs=1")).folder
    code = f"""
import sys, numpy, macl
from pathlib import Path
from PIL import Image
run, to = {str(run)!r}, Path({str(tmp_path)!r})
pictures = numpy.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), dtype="uint8")
numpy.savez(to / "some.npz", images=pictures)
Image.fromarray(pictures[7]).save(to / "one.png")
macl.embed_parts(run, to / "some.npz", to / "parts")
macl.embed(run, to / "some.npz").save(to / "all.parquet")
assert macl.search(run, to / "one.png", to / "parts", k=1)[0].row == 7
macl.mine(run, to / "some.npz", duplicates=0.9)
macl.evaluate(run, protocols=["geometry"])
small = {{"encoder.width": 8, "data.limit": 96, "batch_size": 32, "epochs": 1}}
macl.compare("digits", {{"loss": ["macl", "dcl"]}}, seeds=1, out=to / "both", overrides=small)
engines = {{"ray", "submitit", "optuna", "faiss", "lancedb", "aiohttp", "embedding_atlas"}}
print(engines & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1:] == ["set()"], done.stderr
