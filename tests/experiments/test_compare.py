"""A comparison runs every cell once, whatever happens in between, and tabulates the results."""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import recipe_texts
from macl.cli import main
from macl.cli.application import app
from macl.core.errors import UserError
from macl.core.signals import Interrupted
from macl.experiments import compare, running
from macl.experiments.rows import tabulate
from macl.experiments.tables import latex, markdown, results, write_tables
from macl.runs import Run
from macl.training.module import ContrastiveModule

TINY = [
    "epochs=1",
    "schedule.warmup_epochs=0",
    "data.limit=120",
    "batch_size=32",
    "encoder.width=8",
    "monitor_every=0",
    "evaluation.protocols=[knn]",
]


def cells(out: Path, seeds: int = 2) -> list[compare.Cell]:
    return recipe_texts.plan("digits", ["loss=nt-xent,macl"], seeds, TINY, out)


def test_the_grid_and_its_order(tmp_path):
    vary = ["loss=nt-xent,macl", "batch_size=16,32"]
    given = [override for override in TINY if override != "batch_size=32"]
    grid = recipe_texts.plan("digits", vary, 2, given, tmp_path)
    assert len(grid) == 8
    assert len({cell.folder for cell in grid}) == 8
    first = grid[0]
    assert first.setting == (("loss", "nt-xent"), ("batch_size", "16"))
    assert first.recipe["loss"]["name"] == "nt-xent"
    assert first.recipe["batch_size"] == 16
    assert [cell.seed for cell in grid[:2]] == [0, 1]


def models_alive() -> int:
    return sum(isinstance(thing, ContrastiveModule) for thing in gc.get_objects())


def test_trained_models_do_not_pile_up(tmp_path):
    gc.collect()
    before = models_alive()
    gc.disable()  # left to itself it would free them some cells later
    try:
        running.run_cells(cells(tmp_path, seeds=1))
        assert models_alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("wrong", ["loss", "loss=", "los=macl", "loss=macl,nope", "loss=[macl"])
def test_a_wrong_axis_is_reported_before_anything_runs(wrong, tmp_path):
    with pytest.raises(UserError):
        recipe_texts.plan("digits", [wrong], 1, TINY, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("vary", "given", "expected"),
    [
        (["seed=5,6"], [], "`seeds=`"),
        ([], ["seed=5"], "`seeds=`"),
        (["loss=macl,dcl", "loss=hcl"], [], "`vary=` loss is given twice"),
        (["loss=macl,macl"], [], "the same name"),
        (["batch_size=16,32"], ["batch_size=8"], "batch_size varies here"),
    ],
)
def test_nothing_is_silently_ignored(vary, given, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        recipe_texts.plan("digits", vary, 1, [*TINY[:3], *given], tmp_path)


def test_a_key_below_what_varies_holds_for_all(tmp_path):
    grid = recipe_texts.plan("digits", ["loss=nt-xent,macl"], 1, ["loss.temperature=0.3"], tmp_path)
    assert [cell.recipe["loss"]["temperature"] for cell in grid] == [0.3, 0.3]


def test_lists_vary(tmp_path):
    vary = ["method.projector.widths=[64, 32], [128],[same]"]
    grid = recipe_texts.plan("digits", vary, 1, TINY, tmp_path)
    assert [cell.setting[0][1] for cell in grid] == ["[64, 32]", "[128]", "[same]"]
    widths = [cell.recipe["method"]["projector"]["widths"] for cell in grid]
    assert widths == [[64, 32], [128], ["same"]]
    spaced = recipe_texts.plan("digits", ["loss = nt-xent, macl"], 1, TINY, tmp_path)
    assert [cell.setting for cell in spaced] == [(("loss", "nt-xent"),), (("loss", "macl"),)]


def test_cells_run_once_and_the_table_lists_them(tmp_path, monkeypatch):
    grid = cells(tmp_path)
    running.run_cells(grid[:3])
    written = {cell.folder: (cell.folder / "results.json").stat().st_mtime_ns for cell in grid[:3]}
    running.run_cells(grid)
    assert all((f / "results.json").stat().st_mtime_ns == then for f, then in written.items())
    assert all(map(compare.is_finished, grid))

    rows = tabulate(grid, ["knn top1", "alignment"])
    assert [(row.setting["loss"], row.metric) for row in rows] == [
        ("nt-xent", "knn top1"),
        ("nt-xent", "alignment"),
        ("macl", "knn top1"),
        ("macl", "alignment"),
    ]
    assert rows[0].difference is None
    assert rows[2].difference is not None
    assert rows[2].difference.mean == pytest.approx(rows[2].mean - rows[0].mean)
    assert len(rows[2].values) == 2
    parquet = write_tables(rows, tmp_path)[0]
    tidy = pd.read_parquet(parquet)
    assert len(tidy) == 8
    assert tidy.query("metric == 'knn top1' and loss == 'macl'").value.mean() == rows[2].mean
    assert f"{rows[2].mean:.2f} ± {rows[2].std:.2f}" in markdown(rows)
    assert r"$\pm$" in latex(rows)
    with pytest.raises(UserError, match="no run has the metric 'knn top9'"):
        tabulate(grid, ["knn top9"])


def test_a_run_of_another_recipe_is_refused(tmp_path):
    """Before anything is trained."""
    grid = cells(tmp_path, seeds=1)
    Run.create(grid[1].folder, recipe_texts.load("digits", [*TINY, "batch_size=16"]))
    with pytest.raises(UserError, match="holds a run of another recipe"):
        running.run_cells(grid)
    assert not grid[0].folder.exists()


def test_settings_may_have_different_metrics(tmp_path):
    """A dash is shown where a setting lacks a metric."""
    grid = recipe_texts.plan(
        "digits", ["evaluation.protocols=[knn],[geometry]"], 1, TINY[:-1], tmp_path
    )
    running.run_cells(grid)
    rows = tabulate(grid)
    scores = [row for row in rows if row.kind == "score"]
    assert all(row.difference is None for row in scores)
    _, (first, second) = results(tabulate(grid, ["knn top1", "geometry backbone uniformity"]))
    assert first[2] == second[1] == "–"
    assert "–" not in (first[1], second[2])
    assert all(file.is_file() for file in write_tables(rows, tmp_path))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failing_cell_is_named_and_the_others_go_on(jobs, tmp_path):
    """The baseline's first seed has a broken folder; all else runs and is reported."""
    grid = cells(tmp_path)
    broken = grid[0].folder
    broken.mkdir(parents=True)
    (broken / "notes.txt").write_text("mine")
    with pytest.raises(running.CellsFailed, match=r"1 of 4 runs failed.*\n.*is not empty") as error:
        running.run_cells(grid, running.How(jobs))
    assert str(broken) in str(error.value)
    assert [compare.is_finished(cell) for cell in grid] == [False, True, True, True]
    first, second = tabulate(grid, ["knn top1"])
    assert (first.seeds, second.seeds) == ([1], [0, 1])
    assert second.difference is not None
    assert second.difference.pairs == 1


def test_an_unforeseen_error_is_named_too(tmp_path, monkeypatch, capsys):
    def fail(cell, devices):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(running, "run_cell", fail)
    with pytest.raises(running.CellsFailed, match="ZeroDivisionError: no such luck"):
        running.run_cells(cells(tmp_path))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.slow
def test_cells_train_on_several_devices(tmp_path, monkeypatch):
    """Two processes share the batch, so they take as many steps as one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    grid = cells(tmp_path / "two", seeds=1)[1:]
    alone = cells(tmp_path / "one", seeds=1)[1:]
    running.run_cells(grid, running.How(devices=2))
    running.run_cells(alone)
    found, expected = (Run(cell[0].folder).metrics()[-1] for cell in (grid, alone))
    assert found["step"] == expected["step"]
    assert compare.is_finished(grid[0])
    with pytest.raises(UserError, match="leave `jobs=` out"):
        running.run_cells(grid, running.How(2, 2))


@pytest.mark.parametrize(
    "command", [["compare", "digits", "--vary", "loss=macl,dcl"], ["reproduce", "umap"]]
)
def test_the_commands_pass_devices_on(command, tmp_path, monkeypatch):
    def run(cells, how, finished):
        raise UserError(f"{len(cells)} cells on {how.devices} devices")

    monkeypatch.setattr(running, "run_cells", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    given = [*command, "--seeds", "1", "--devices", "4", "--out", str(tmp_path)]
    assert str(CliRunner().invoke(app, given).exception) == "2 cells on 4 devices"


def processes_about(folder: Path) -> list[int]:
    """Those that have `folder` among their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while we look
            if str(folder).encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.slow
def test_a_training_on_devices_ends_with_the_comparison(tmp_path):
    command = [
        sys.executable,
        *("-m", "macl", "compare", "digits", "--seeds", "1", "--devices", "2"),
        *("--out", str(tmp_path), *TINY, "epochs=100000"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    comparison = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 240
    while not list(tmp_path.rglob("last.ckpt")):
        assert comparison.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(processes_about(tmp_path)) >= 3
    comparison.kill()
    comparison.wait()
    while processes_about(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_about(tmp_path)


@pytest.mark.slow
def test_the_message_of_a_training_on_devices_is_passed_on(tmp_path):
    grid = recipe_texts.plan("digits", [], 1, [*TINY, "data.limit=8"], tmp_path)
    with pytest.raises(running.CellsFailed, match=r"seed-0: .*batch"):
        running.run_cells(grid, running.How(devices=2))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Interrupted])
def test_a_stop_is_no_failure(stop, tmp_path, monkeypatch):
    def stopped(cell, devices):
        raise stop

    monkeypatch.setattr(running, "run_cell", stopped)
    with pytest.raises(stop):
        running.run_cells(cells(tmp_path))


def test_the_table_has_what_there_is(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    broken = cells(out)[0].folder
    broken.mkdir(parents=True)
    (broken / "notes.txt").write_text("mine")
    arguments = ["compare", "digits", "--vary", "loss=nt-xent,macl", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["macl", *arguments, "--out", str(out), *TINY])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown, messages = capsys.readouterr()
    assert "no difference shown with 1 seed" in shown
    assert "4 of 4 runs ended: " in messages
    assert f"{broken}: " in messages
    assert len(pd.read_parquet(out / "table.parquet").query("metric == 'knn top1'")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopping_loses_no_finished_cell(how, tmp_path, monkeypatch, capsys):
    """Stopped in the middle and started again: every cell is there, the finished ones untouched.

    Ctrl-C reaches the workers too, as a terminal sends it to all that it shows.
    """
    out = tmp_path / "out"
    seeds = 3  # so that much is left when the first cells are finished
    arguments = ["compare", "digits", "--vary", "loss=nt-xent,macl", "--seeds", str(seeds)]
    command = ["macl", *arguments, "--out", str(out), *TINY]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--jobs", "2"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that run in the background of a shell would hand down that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    grid = cells(out, seeds)
    deadline = time.monotonic() + 240
    while not any(map(compare.is_finished, grid)) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == (130 if how == signal.SIGINT else -how), messages
    if how == signal.SIGINT:
        assert "stopped; give the same command again to continue" in messages
        assert "Traceback" not in messages
    done = {cell.folder: _stamp(cell) for cell in grid if compare.is_finished(cell)}
    assert 0 < len(done) < len(grid)
    # The workers of --jobs have done their part: the rest runs here, which has imported torch.
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main()
    messages = capsys.readouterr().err
    assert ended.value.code == 0, messages
    assert f"{len(grid)} runs in {out}, {len(done)} of them finished before" in messages
    assert all(map(compare.is_finished, grid))
    assert {cell.folder: _stamp(cell) for cell in grid if cell.folder in done} == done


def _stamp(cell: compare.Cell) -> dict[str, int]:
    """When each file of a run was last written."""
    return {
        str(file.relative_to(cell.folder)): file.stat().st_mtime_ns
        for file in cell.folder.rglob("*")
    }
