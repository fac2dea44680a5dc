"""Every table and figure at its smallest scale, from the command to the page."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from macl import cli
from macl.experiments import compare, running
from macl.experiments.rows import Row, tabulate
from macl.experiments.statistics import paired_difference
from macl.paper import figures, reproduce
from macl.paper import tables as paper_tables
from macl.paper.reproduce import cost
from macl.paper.side_by_side import line_up, write_up
from macl.reporting.map import embedding_map
from macl.runs import Run

RUN_HERE = sorted(set(paper_tables.available()) - {"voc-detection", "gradient-scale"})
QUICK = ("loss-ablation", "umap")
"""A table and a figure. The grids of all are checked without training in test_reproduce.py."""

Macl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_macl(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Macl]:
    """`macl ARGUMENTS` in this process, in an empty folder."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["macl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)


def smoke(
    name: str, out: Path, given: Mapping[str, Any] | None = None
) -> tuple[list[compare.Cell], str]:
    """Run a table as the command does; its runs, and its page."""
    table = paper_tables.load(name)
    cells = reproduce.plan(table, "smoke", given or {}, out)
    reproduce.require(table, "smoke", cells)
    running.run_cells(cells)
    command = reproduce.command(table, "smoke", given or {})
    files = write_up(table, "smoke", cells, out, command).files
    assert all(file.stat().st_size for file in files)
    return cells, (out / "reproduction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUN_HERE],
)
def test_every_table_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "choose_projection", lambda items: "pca")  # UMAP compiles for long
    table = paper_tables.load(name)
    runs = table.scales["smoke"]
    cells, page = smoke(name, tmp_path)

    tidy = pd.read_parquet(tmp_path / "reproduction.parquet")
    assert tidy.paper.notna().sum() == len(table.published())
    metrics = runs.metrics or table.metrics
    assert tidy.here.notna().sum() == len(cells) * len(metrics)
    for number in table.published().values():
        assert f"| {number.value:.{table.decimals}f}" in page
    for row in tabulate(cells, list(metrics.values())):
        assert f"| {row.mean:.2f} |" in page
    for departure in reproduce.departures(table, cells):
        assert f"| {' | '.join(departure)} |" in page
    assert all(note in page for note in (*table.notes, *runs.notes))
    assert str(tmp_path) not in page
    drawn = {file.suffix for file in tmp_path.glob(f"{name}.*")}
    assert drawn == ({".png", ".pdf"} if table.figure else set())
    if "topics" not in runs.recipe:  # whose size depends on the version of Python
        for cell in cells:
            expected = cost(cell.recipe, runs.items_of(cell.setting), 1).steps
            assert Run(cell.folder).metrics()[-1]["step"] == expected


def test_detection_runs_where_voc_is(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    beside = Path(__file__).parents[3] / "shared" / "data"
    archive = Path(os.environ.get("MACL_SHARED_DATA", beside)) / "images" / "voc2012_subset.tar"
    if not archive.is_file():
        pytest.skip("VOC is not here: set MACL_SHARED_DATA")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    for split, kept in (("train", 6), ("val", 3)):
        listed = tmp_path / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main" / f"{split}.txt"
        listed.write_text("\n".join(listed.read_text().splitlines()[:kept]) + "\n")
    cells, page = smoke("voc-detection", tmp_path / "out", {"evaluation.detection.data": tmp_path})
    assert "| SimCLR | AP50 | 79.4 |" in page
    assert all((cell.folder / "detection").is_dir() for cell in cells)


def test_the_gains_of_both_sides(tmp_path: Path) -> None:
    table = paper_tables.load("cifar10-reweighting")
    scale = table.scales["smoke"]

    def row(loss: str, value: float) -> Row:
        difference = None if loss == "NT-Xent" else paired_difference([value], [50.0])
        return Row({"loss": loss, "batch": "64"}, "knn top1", [0], [value], value, 0.0, difference)

    lines = line_up(table, scale, [row("NT-Xent", 50.0), row("MACL", 53.0)])
    by_place = {(line.metric, *(label for _, label in line.setting)): line for line in lines}
    assert len(lines) == 50
    macl = by_place["kNN", "MACL", "64"]
    assert macl.gain == pytest.approx(84.96 - 78.80)
    assert macl.ours is not None
    assert macl.ours.difference is not None
    assert macl.ours.difference.mean == pytest.approx(3.0)
    assert by_place["kNN", "NT-Xent", "64"].gain is None
    assert by_place["linear", "DCL", "1024"].ours is None
    assert by_place["linear", "DCL", "1024"].gain == pytest.approx(85.61 - 85.30)


def test_stand_ins_are_named(tmp_path: Path) -> None:
    table = paper_tables.load("batch-sizes")
    lines = line_up(table, table.scales["laptop"], [])
    assert {line.run_as for line in lines if dict(line.setting)["batch"] == "2048"} == {
        "batch_size=256"
    }
    paper = line_up(table, table.scales["paper"], [])
    assert {line.run_as for line in paper} == {""}


def test_bars_are_the_numbers() -> None:
    table = paper_tables.load("batch-sizes")
    scale = table.scales["laptop"]
    rows = [
        Row(dict(setting), "linear top1", [0, 1], [40.0, 41.0], 40.5 + i, 0.7, None)
        for i, (setting, _) in enumerate(table.settings(scale))
    ]
    left, right = figures.bars(table, line_up(table, scale, rows), scale.recipe).axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["256", "512", "1024", "2048"]
    assert right.get_xticklabels()[0].get_text() == "256\nbatch_size=32"
    heights = {
        bars.get_label(): [bar.get_height() for bar in bars] for bars in left.containers[1::2]
    }
    assert heights == {"SimCLR": [61.9, 64.0, 66.1], "w/ MACL": [64.3, 65.2, 66.5, 66.9]}
    gains = [text.get_text() for text in left.texts]
    assert gains == ["+2.4", "+1.2", "", "+0.8"]
    assert [bar.get_height() for bar in right.patches] == [row.mean for row in rows]


def test_the_gradient_scale_needs_no_run(run_macl: Macl, tmp_path: Path) -> None:
    code, _, err = run_macl("reproduce", "gradient-scale")
    assert code == 0, err
    folder = tmp_path / "reproductions" / "gradient-scale-smoke"
    assert sorted(file.name for file in folder.iterdir()) == [
        "gradient-scale.pdf", "gradient-scale.png", "reproduction.md",
    ]  # fmt: skip
    left, right = figures.gradient_scale().axes
    for line in left.lines:
        assert (pd.Series(line.get_ydata()).diff().dropna() >= 0).all()
    (sixteen,) = [line for line in right.lines if line.get_label() == "K = 16"]
    # exp(-1 / τ) against exp(1 / τ) at τ = 2, the right end
    assert sixteen.get_ydata()[-1] == pytest.approx(16 / (16 + 2.718281828), rel=1e-6)


def test_the_map_shows_every_test_item(tmp_path: Path) -> None:
    table = paper_tables.load("umap")
    cells = reproduce.plan(table, "smoke", {}, tmp_path)
    running.run_cells(cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "choose_projection", lambda items: "pca")
        figure = figures.maps(table, cells)
    assert [axes.get_title() for axes in figure.axes] == ["NT-Xent", "MACL"]
    for axes, cell in zip(figure.axes, cells, strict=True):
        placed = embedding_map(Run.open(cell.folder), figures.MOST_POINTS, "pca")
        drawn = [each.get_offsets().data for each in axes.collections]  # one for each class
        order = np.argsort(placed.labels, kind="stable")
        assert np.concatenate(drawn) == pytest.approx(placed.points[order])


def test_the_command_lists_plans_and_explains(run_macl: Macl, tmp_path: Path) -> None:
    code, out, _ = run_macl("reproduce")
    assert code == 0
    for name in paper_tables.available():
        assert name in out
    assert "CIFAR-10 (--data PATH): you provide it" in out
    assert "macl[text]: " in out

    code, out, err = run_macl("reproduce", "loss-ablation", "--scale", "paper", "--dry-run")
    assert code == 0, err
    assert "8 runs, 4,003,200 steps" in err  # 2502 batches of 512, 200 epochs, 8 runs
    assert "of GPU time" in err
    assert "optimizer.lr=2.4" in out
    code, _, err = run_macl("reproduce", "gradient-scale", "--dry-run")
    assert code == 0
    assert "without any run" in err
    assert not (tmp_path / "reproductions").exists()

    code, _, err = run_macl("reproduce", "batch-size")
    assert code == 2
    assert "Did you mean 'batch-sizes'?" in err
    code, _, err = run_macl("reproduce", "batch-sizes", "--scale", "laptop")
    assert code == 2
    assert "needs CIFAR-10: give it as --data PATH" in err
    assert not (tmp_path / "reproductions").exists()


def test_data_reaches_the_key_that_asks_for_it(run_macl: Macl, tmp_path: Path) -> None:
    code, out, err = run_macl("reproduce", "voc-detection", "--data", str(tmp_path), "--dry-run")
    assert code == 0, err
    assert "SimCLR" in out
    code, _, err = run_macl("reproduce", "gradient-scale", "--data", str(tmp_path))
    assert code == 2
    assert "without any run" in err


@pytest.mark.slow
def test_the_command_runs(run_macl: Macl, tmp_path: Path) -> None:
    code, out, err = run_macl(
        "reproduce", "molecule-transfer", "evaluation.k=5", "--seeds", "2", "--out", "made"
    )
    assert code == 0, err
    assert "4 runs in made, 0 of them finished before" in err
    assert "73.87 ± 0.66" in out
    page = (tmp_path / "made" / "reproduction.md").read_text(encoding="utf-8")
    assert "over 2 seeds" in page
    assert "`macl reproduce molecule-transfer --scale smoke --seeds 2 evaluation.k=5`" in page
