"""The command line: what people type, what they get, and how mistakes are told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import macl
from macl import cli
from macl.runs import Run
from tiny import TINY, python

FOLDER = (
    "workers=0", "epochs=1", "batch_size=8", "views.size=16", "encoder.width=8",
    "schedule.warmup_epochs=0", "monitor_every=1",
)  # fmt: skip


class Told(NamedTuple):
    code: int
    out: str
    err: str


Macl = Callable[..., Told]


@pytest.fixture
def run_macl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Macl:
    """`macl ARGUMENTS` in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MACL_RUN_FOLDER", raising=False)

    def run(*arguments: str | Path) -> Told:
        monkeypatch.setattr(sys, "argv", ["macl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return Told(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands below work, one after the other."""
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def pictures(place: Path) -> Path:
    """A folder of 24 pictures without classes, some of them in folders below."""
    folder = place / "pictures"
    (folder / "more").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 256, (20 + number % 3, 24, 3), dtype=np.uint8)
        name = f"{number:02}.png" if number % 2 else f"more/{number:02}.jpg"
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture
def digits(run_macl: Macl, place: Path) -> Path:
    """A finished run on the digits."""
    folder = place / "digits"
    if not folder.exists():
        told = run_macl("train", "digits", *TINY, "evaluation.linear.epochs=2", "--out", folder)
        assert told.code == 0, told.err
        assert "done: loss" in told.err
        assert f"next: macl evaluate {folder}" in told.err
    return folder


@pytest.fixture
def unlabelled(run_macl: Macl, place: Path, pictures: Path) -> Path:
    """A finished run on the pictures."""
    folder = place / "unlabelled"
    if not folder.exists():
        told = run_macl("train", "imagenette-small", *FOLDER, "--data", pictures, "--out", folder)
        assert told.code == 0, told.err
    return folder


def assert_mistake(told: Told, *words: str) -> None:
    assert told.code == 2
    assert told.err.splitlines()[-1].startswith(("error: ", "  ")), told.err
    assert "Traceback" not in told.err
    for word in words:
        assert word in told.err, told.err


def test_recipes_are_listed_and_shown(run_macl: Macl) -> None:
    told = run_macl("recipes")
    assert told.code == 0
    for name in ("digits", "simclr-imagenet1k", "moco-imagenet100", "nnclr-imagenet100"):
        assert name in told.out
    assert "images" in told.out
    assert "source: digits" in run_macl("recipes", "digits").out
    assert_mistake(run_macl("recipes", "digitz"), "Did you mean 'digits'?")


def test_evaluate_prints_and_records(run_macl: Macl, digits: Path) -> None:
    told = run_macl("evaluate", digits)
    assert told.code == 0, told.err
    scores = Run.open(digits).results()["scores"]
    assert {score["protocol"] for score in scores} == {"knn", "linear", "geometry"}
    top1 = next(s for s in scores if (s["protocol"], s["metric"]) == ("knn", "top1"))
    assert f"{top1['value']:.2f}" in told.out
    assert top1["value"] > 20  # chance is 10
    only = run_macl("evaluate", digits, "k=3", "--protocol", "knn")
    assert "knn" in only.out
    assert "linear" not in only.out


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".npz"])
def test_embed_names_what_it_embeds(
    suffix: str, run_macl: Macl, unlabelled: Path, pictures: Path, tmp_path: Path
) -> None:
    output = tmp_path / f"vectors{suffix}"
    told = run_macl("embed", unlabelled, pictures, "-o", output)
    assert told.code == 0, told.err
    assert "24 vectors of 32 dimensions" in told.err
    if suffix == ".parquet":
        table = pq.read_table(output)
        names, vectors = table["name"].to_pylist(), np.array(table["vector"].to_pylist())
    elif suffix == ".npz":
        file = np.load(output, allow_pickle=False)
        names, vectors = file["names"].tolist(), file["vectors"]
    else:
        names = output.with_suffix(".names.txt").read_text().splitlines()
        vectors = np.load(output, allow_pickle=False)
    assert sorted(names) == sorted(
        path.relative_to(pictures).as_posix() for path in pictures.rglob("*.*")
    )
    run = Run.open(unlabelled)
    alone = run.embed(run.modality.open(run.recipe.data, pictures / names[5]))
    torch.testing.assert_close(
        torch.tensor(vectors[5], dtype=torch.float32), alone[0], rtol=1e-4, atol=1e-5
    )


def test_what_is_left_out_is_told_in_words(
    run_macl: Macl, unlabelled: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "whole.png")
    (tmp_path / "broken.png").write_text("no picture")
    told = run_macl("embed", unlabelled, tmp_path, "-o", tmp_path / "out.npy", "data.on_error=skip")
    assert told.code == 0, told.err
    assert "warning: 1 of 2 image files cannot be used" in told.err
    assert "Warning" not in told.err.replace("warning", "")
    assert len(np.load(tmp_path / "out.npy")) == 1


def test_evaluating_without_labels_says_what_to_do(run_macl: Macl, unlabelled: Path) -> None:
    assert_mistake(run_macl("evaluate", unlabelled), "test", "data.test_split", "data.test_path")


def test_class_folders_make_evaluation_possible(
    run_macl: Macl, unlabelled: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / kind / f"{number}.png")
    told = run_macl("evaluate", unlabelled, "--data", tmp_path, "--protocol", "knn")
    assert told.code == 0, told.err
    assert "top1" in told.out


def test_resuming_a_finished_run_does_nothing(run_macl: Macl, digits: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in digits.rglob("*")}
    assert run_macl("train", digits, "--resume").code == 0
    again = run_macl(
        "train", "digits", *TINY, "evaluation.linear.epochs=2", "--out", digits, "--resume"
    )
    assert again.code == 0, again.err
    assert {p: p.stat().st_mtime_ns for p in digits.rglob("*")} == before


def test_a_run_starts_where_none_is_yet(
    run_macl: Macl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    quick = ("epochs=1", "data.limit=40", "batch_size=32", "schedule.warmup_epochs=0")
    told = run_macl("train", "digits", *quick)
    assert told.code == 0, told.err
    assert "into runs/digits-2" in told.err
    assert Run.open(Path("runs/digits-2")).is_finished


def test_mistakes_in_training(
    run_macl: Macl, digits: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    assert_mistake(run_macl("train", "digitss", "--out", new), "Did you mean 'digits'?")
    assert_mistake(run_macl("train", "digits", "epoch=1", "--out", new), "mean 'epochs'?")
    assert_mistake(run_macl("train", "digits", "--out", digits), "not empty", "--resume")
    assert_mistake(run_macl("train", "digits", "--out", new, "--resume"), "no run to resume")
    assert_mistake(run_macl("train", "digits", "--resume"), "no run folder", "--out")
    assert_mistake(
        run_macl("train", digits, "loss.alpha=0.1", "--resume"), "another recipe", "loss.alpha"
    )
    assert_mistake(
        run_macl("train", "imagenette-small", "--data", tmp_path / "x", "--out", new),
        "no such file or folder",
    )
    assert_mistake(run_macl("train", "imagenette-small", "--out", new), "needs path")
    (tmp_path / "empty").mkdir()
    assert_mistake(
        run_macl("train", "imagenette-small", "--data", tmp_path / "empty", "--out", new), "empty"
    )
    assert_mistake(
        run_macl("train", "imagenette-small", "--data", pictures, "--out", new),
        "batch_size=64 is more than the 24 training samples",
    )
    assert_mistake(
        run_macl("train", "digits", "batch_size=33", "--out", new, "--devices", "2"),
        "batch_size=33", "2 processes",
    )  # fmt: skip
    assert not new.exists()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert_mistake(run_macl("train", "digits"), "--out")


def test_mistakes_after_training(
    run_macl: Macl, unlabelled: Path, pictures: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "v.npy"
    assert_mistake(run_macl("evaluate", tmp_path), "is no run", "macl train")
    assert_mistake(run_macl("embed", tmp_path, pictures, "-o", vectors), "is no run")
    assert_mistake(
        run_macl("embed", unlabelled, pictures, "-o", tmp_path / "v.txt"), ".parquet, .npy, .npz"
    )
    assert_mistake(run_macl("embed", unlabelled, tmp_path / "x", "-o", vectors), "does not exist")
    assert_mistake(
        run_macl("embed", unlabelled, pictures, "-o", tmp_path / "no" / "v.npy"), "is not there"
    )
    assert_mistake(run_macl("evaluate", unlabelled, "--protocol", "sts"), "evaluation.protocols")


def test_markup_in_names_is_not_interpreted(run_macl: Macl) -> None:
    assert_mistake(run_macl("evaluate", "[bold]runs[/nothing]"), "[bold]runs[/nothing]")


def test_a_process_ends_with_the_code_and_without_traceback() -> None:
    done = python("macl_script.py", "recipes", "digitz")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no recipe is called 'digitz'.")
    assert "Traceback" not in done.stderr


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import json, sys; sys.argv = ['macl', '--help']\n"
        "from macl.cli import main\n"
        "try: main()\n"
        "finally: print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    source = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "train" in done.stdout
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert "macl" in loaded
    assert not loaded & {"torch", "lightning", "pydantic", "numpy", "sklearn", "torchvision"}


def test_every_command_explains_itself(run_macl: Macl) -> None:
    for command in ("recipes", "train", "evaluate", "embed"):
        told = run_macl(command, "--help")
        assert told.code == 0
        assert "Usage" in told.out
