"""Names from data control neither the terminal, nor a spreadsheet, nor a page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import tiny
from macl.api import report
from macl.cli.console import message, table
from macl.core.shown import from_cell, one_line, shown, to_cell
from macl.core.weights import save_weights
from macl.runs import Run
from macl.runs.model_card import model_card
from macl.runs.vectors import Vectors, read_vectors
from macl.training.fit import train

NAMES = [
    "\x1b]0;owned\x07\x1b[31mred", "[/b] hello", "a\nb", "a\rb", '"quoted"', "=1+1", "+1",
    "-1", "@x", "'=1", "'plain", "\u202egnp.exe", "\x9b2J", "$x", "<script>alert(1)</script>",
    "F/C=C\\F", "é 漢",
]  # fmt: skip


def has_control(text: str) -> bool:
    return any(not (c.isprintable() or c in "\n\t") for c in text)


def test_tables_and_messages_show_control_characters_and_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in NAMES:
        table(f"Nearest to {name}", ("name", name), [(name, 1)])
        message(f"found {name}")
    out, err = capsys.readouterr()
    assert not has_control(out)
    assert not has_control(err)
    assert r"\x1b]0;owned\x07\x1b[31mred" in out
    assert "[/b] hello" in out
    assert r"found \x1b]0;owned" in err


def test_what_is_shown_can_be_told_apart() -> None:
    assert len({one_line(name) for name in NAMES}) == len(NAMES)
    assert one_line("a\nb\t\x00") == r"a\nb\t\x00"
    assert shown("a\nb é 漢") == "a\nb é 漢"
    assert shown("\udcff").encode() == rb"\udcff"


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_names_are_read_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    values = torch.randn(len(NAMES), 2)
    Vectors(values, NAMES).save(path)
    found = read_vectors(path)
    assert found.names == NAMES
    torch.testing.assert_close(found.values, values)


def test_a_spreadsheet_sees_no_formula(tmp_path: Path) -> None:
    Vectors(torch.zeros(len(NAMES), 1), NAMES).save(tmp_path / "v.csv")
    with (tmp_path / "v.csv").open(newline="") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert not [cell for cell in cells if cell[:1] in "=+-@"]
    assert [from_cell(to_cell(name)) for name in NAMES] == NAMES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on pictures whose classes have odd names, one test picture for each."""
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("secret-place")
    numbers = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 1)):
        for name in ("$\\frac$", "_under", "\x1b[31m", "<b>bold</b>", "[/b]", "a\nb", "😀"):
            folder = root / "data" / part / name.replace("/", "∕")
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    recipe = tiny.recipe(
        "epochs=1", "data.limit=null", "data.source=auto", f"data.path={root / 'data'}",
        "batch_size=8",
        "monitor_every=0", "evaluation.protocols=[knn,geometry]", "name=<img src=x>[link](http://x)",
    )  # fmt: skip
    return train(recipe, root / "run", compute=tiny.HERE)


def test_classes_of_one_test_picture_are_evaluated(run: Run) -> None:
    from macl.api import evaluate

    metrics = {score.metric for score in evaluate(run.folder)}
    assert "uniformity" in metrics
    assert "tolerance" not in metrics


def test_figures_are_drawn_with_odd_class_names(run: Run, tmp_path: Path) -> None:
    files = report(run.folder, tmp_path / "r.html", figures=tmp_path / "figures", projection="pca")
    assert (tmp_path / "figures" / "map.pdf").stat().st_size > 1000
    page = files[0].read_text()
    assert "<b>bold</b>" not in page
    assert "<img src=x>" not in page


def test_a_report_has_no_absolute_paths_unless_asked(run: Run, tmp_path: Path) -> None:
    place = str(run.folder.parent)
    report(run.folder, tmp_path / "a.html", projection="pca")
    report(run.folder, tmp_path / "b.html", projection="pca", paths=True)
    assert place not in (tmp_path / "a.html").read_text()
    assert place in (tmp_path / "b.html").read_text()
    moved = run.folder.parent / "data"
    moved.rename(tmp_path / "gone")
    try:
        report(run.folder, tmp_path / "c.html")
    finally:
        (tmp_path / "gone").rename(moved)
    text = (tmp_path / "c.html").read_text()
    assert "There is no map" in text
    assert place not in text


def test_the_model_card_escapes_html_links_and_fences(run: Run) -> None:
    card = model_card(run, ["a.safetensors: 3 numbers", "<i>"], "mit</p>")
    body = card.split("---", 2)[2]
    assert "<img" not in body.split("```")[0] + body.split("## Files")[1].split("```")[0]
    assert r"&lt;img src=x&gt;\[link](http://x)" in body
    assert "- &lt;i&gt;" in body
    assert "mit&lt;/p&gt;" in body


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    """The library writes metadata in the order of a hash that differs every time."""
    metadata = {f"key {number}": "value" for number in range(12)}
    files = []
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        save_weights(torch.nn.Linear(1, 1).requires_grad_(False).apply(_zero), path, metadata)
        files.append(path.read_bytes())
    assert len(set(files)) == 1


def _zero(module: torch.nn.Module) -> None:
    for value in module.parameters():
        value.zero_()
