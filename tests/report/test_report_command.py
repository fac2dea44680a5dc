"""`macl report`: what is written, and the errors for missing or damaged input."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

import macl
import recipe_texts
import tiny
from macl import recipes
from macl.cli.application import app
from macl.core.errors import UserError
from macl.experiments.rows import tabulate
from macl.experiments.tables import write_tables
from macl.probes.score import Score
from macl.reporting import Projection
from macl.reporting.build import write_report
from macl.runs import Run
from macl.training.fit import train


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of eight pictures, without a test split."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / kind).mkdir()
        for number in range(8):
            pixels = generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = ["workers=0", "epochs=1", "batch_size=8", "views.size=16", "encoder.width=8",
                 "schedule.warmup_epochs=0", f"data.path={pictures}"]  # fmt: skip
    recipe = recipe_texts.load("imagenette-small", overrides)
    return train(recipe, tmp_path_factory.mktemp("runs") / "run", compute=tiny.HERE)


def test_the_command_writes_a_page_and_figures(run: Run, tmp_path: Path) -> None:
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    arguments = ["report", str(run.folder), "-o", str(output), "--points", "10",
                 "--projection", "pca", "--figures", str(figures)]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    page = output.read_text(encoding="utf-8")
    assert "10 items of the training split, placed by PCA" in page
    assert "Not evaluated yet" in page
    for name in ("loss.png", "alignment.pdf", "map.png", "map.pdf"):
        assert (figures / name).stat().st_size > 1000


def test_reports_repeat(run: Run, tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        (file,) = write_report(run.folder, tmp_path / name, projection=Projection.PCA)
        pages.append(file.read_bytes())
    assert pages[0] == pages[1]


def test_without_data_only_the_map_is_missing(run: Run, pictures: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.move(pictures, moved)
    try:
        page = write_report(run.folder, tmp_path / "a.html")[0].read_text(encoding="utf-8")
        assert "There is no map" in page
        assert pictures.name in page
        assert "--data PATH" in page
        assert "Gradient scale" in page
        (found,) = write_report(
            run.folder, tmp_path / "b.html", data=moved, projection=Projection.PCA
        )
        assert 'id="map-data"' in found.read_text(encoding="utf-8")
    finally:
        shutil.move(moved, pictures)


def test_an_unfinished_run_has_a_page(run: Run, tmp_path: Path) -> None:
    under_way = tmp_path / "run"
    under_way.mkdir()
    for file in (run.recipe_file, run.metrics_file):
        shutil.copy(file, under_way)
    page = write_report(under_way, tmp_path / "a.html")[0].read_text(encoding="utf-8")
    assert "no encoder yet" in page
    assert "Alignment" in page


def test_mistakes_are_errors(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    with pytest.raises(UserError, match=r"ends in \.html"):
        write_report(run.folder, tmp_path / "a.pdf")
    with pytest.raises(UserError, match="is not a run"):
        write_report(tmp_path, page)
    with pytest.raises(UserError, match="no such file or folder"):
        macl.report(run.folder, page, data=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        write_report(run.folder, page, data=tmp_path / "empty")
    (tmp_path / "stopped" / "runs").mkdir(parents=True)
    with pytest.raises(UserError, match="macl compare"):
        write_report(tmp_path / "stopped", page)
    assert not page.exists()


DAMAGED_JSON = [
    "",
    "{",
    "[]",
    "3",
    '{"findings": 3}',
    '{"findings": [{}], "advice": []}',
    "[" * 10**5,
]


@pytest.mark.parametrize("text", DAMAGED_JSON, ids=lambda text: text[:20] or "empty")
def test_a_damaged_diagnosis_is_an_error(text: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(run.recipe_file, folder)
    (folder / "diagnosis.json").write_text(text)
    with pytest.raises(UserError, match=r"diagnosis\.json cannot be read .* `macl diagnose"):
        write_report(folder, tmp_path / "a.html")


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """The table of a comparison, and an evaluated run for each of its cells."""
    folder = tmp_path / "comparison"
    cells = recipe_texts.plan("digits", ["loss=nt-xent,macl"], 2, [], folder)
    for cell in cells:
        made = Run.create(cell.folder, recipes.resolve(cell.recipe))
        made.record([Score("knn", "top1", 50.0 + cell.seed)])
    write_tables(tabulate(cells, ["knn top1"]), folder)
    return folder


def test_a_damaged_table_is_an_error(compared: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "a.html", compared / "table.parquet"
    write_report(compared, page)
    whole = table.read_bytes()
    for damaged in (b"", b"PAR1", whole[: len(whole) // 2], b"\0" * len(whole)):
        table.write_bytes(damaged)
        with pytest.raises(UserError, match=r"table\.parquet cannot be read .*`macl compare`"):
            write_report(compared, page)
    pd.DataFrame({"loss": ["macl"], "metric": ["knn top1"]}).to_parquet(table)
    with pytest.raises(UserError, match=r"table\.parquet cannot be read .*seed"):
        write_report(compared, page)


@pytest.mark.parametrize(
    "option", [["--points", "10"], ["--projection", "pca"], ["--data", "."]], ids=lambda o: o[0]
)
def test_a_comparison_has_no_map_to_set(option: list[str], compared: Path, tmp_path: Path) -> None:
    arguments = ["report", str(compared), "-o", str(tmp_path / "a.html"), *option]
    result = CliRunner().invoke(app, arguments).exception
    assert isinstance(result, UserError)
    assert "`points=`, `data=` and `projection=` are for one run" in str(result)


# --- several runs


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs of the same name that differ in their loss, and in their columns and scores."""
    folders = [tmp_path / "a" / "digits", tmp_path / "b" / "digits"]
    for folder, loss in zip(folders, ("nt-xent", "macl"), strict=True):
        made = Run.create(folder, recipe_texts.load("digits", [f"loss={loss}"]))
        made.record([Score("knn", "top1", 61.5), Score("svm", "accuracy", 70.25, task=loss)])
    metrics = "step,epoch,loss\n1,0,2.5\n2,1,2.25\n"
    (folders[0] / "metrics.csv").write_text(metrics)
    (folders[1] / "metrics.csv").write_text("step,epoch,loss,variance\n1,0,3,0.5\n2,1,2,0.75\n")
    return folders


def test_several_runs_share_a_page(runs: list[Path], tmp_path: Path) -> None:
    files = write_report(runs, tmp_path / "runs.html", figures=tmp_path / "figures")
    page = files[0].read_text(encoding="utf-8")
    assert page.count("<polyline") == 3  # the loss of both, and a column that only one has
    for name in ("a/digits", "b/digits"):
        assert f'data-name="{name}"' in page
    rows = dict(re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', page))
    values = {key: re.findall(r">([^<]+)</td>", cells) for key, cells in rows.items()}
    assert values["knn top1"] == ["61.50", "61.50"]
    assert values["svm macl accuracy"] == ["–", "70.25"]
    assert values["loss.name"] == ["nt-xent", "macl"]
    assert "batch_size" not in values  # equal in both
    assert {file.name for file in files[1:]} == {
        "loss.png", "loss.pdf", "variance.png", "variance.pdf"
    }  # fmt: skip


def test_pages_say_how_far_the_temperature_moved(runs: list[Path], tmp_path: Path) -> None:
    title = "Range of τ in training"
    (page,) = write_report(runs, tmp_path / "runs.html")
    assert title not in page.read_text(encoding="utf-8")
    logged = "step,epoch,loss,temperature\n1,0,3,0.1\n2,1,2,0.4\n"
    (runs[1] / "metrics.csv").write_text(logged)
    (page,) = write_report(runs, tmp_path / "runs.html")
    text = page.read_text(encoding="utf-8").partition(title)[2]
    rows = dict(re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', text))
    assert re.findall(r">([^<]+)</td>", rows["lowest"]) == ["–", "0.1"]
    assert re.findall(r">([^<]+)</td>", rows["highest"]) == ["–", "0.4"]
    (page,) = write_report(runs[1], tmp_path / "run.html")
    assert "<strong>0.400</strong><span>Highest τ in training" in page.read_text(encoding="utf-8")


def test_runs_that_cannot_share_a_page(runs: list[Path], compared: Path, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    with pytest.raises(UserError, match="given twice"):
        write_report([runs[0], runs[0]], page)
    with pytest.raises(UserError, match="give it alone"):
        write_report([runs[0], compared], page)
    with pytest.raises(UserError, match="for one run"):
        write_report(runs, page, points=10)
    with pytest.raises(UserError, match="needs the folder"):
        write_report([], page)
    with pytest.raises(UserError, match="is not a run"):
        write_report([runs[0], tmp_path / "nowhere"], page)
    assert not page.exists()
