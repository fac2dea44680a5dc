"""Commands answer mistakes before anything heavy is imported, and suggest only what will work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import macl
from macl import recipes
from macl.cli.application import app
from macl.cli.console import WIDTH, table
from macl.core import progress
from macl.paper.reproduce import time_text

SMALL = ["epochs=1", "data.limit=64", "batch_size=32", "encoder.width=8", "monitor_every=1"]

MAIN = """
import sys
sys.argv[1:] = {arguments!r}
from macl.cli import main
try:
    main()
finally:
    print("heavy:", sorted({{"torch", "lightning", "transformers", "sklearn", "pandas",
                             "matplotlib"}} & set(sys.modules)))
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that finds this macl."""
    paths = os.pathsep.join([str(Path(macl.__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "digits", "--out", "taken"], "is not empty"),
        (["diagnose", "nonexist"], "is not a run"),
        (["export", "nonexist", "there"], "is not a run"),
        (["export", "nonexist", "taken"], "is not empty"),
        (["report", "nonexist"], "no such file or folder"),
        (["embed", "nonexist", "a.csv", "-o", "v.txt"], "must end in"),
        (["embed", "nonexist", "b.csv", "-o", "v.npy"], "b.csv: there is no such file"),
        (["search", "nonexist", "text", "--in", "v.npy"], "v.npy: there is no such file"),
        (["evaluate", "run", "--protocol", "knnn"], "(got 'knnn')"),
        (["adapt", "x", "--data", "nowhere", "--out", "y"], "nowhere: there is no such file"),
        (["adapt", "x", "--data", "a.csv", "loss=dcl"], "give the folder to write (--out DIR)"),
        (["adapt", "x"], "give the data to adapt to (--data PATH) and the folder to write"),
        (["adapt", "done"], "give --labels TABLE to judge it again"),
        (["adapt", "x", "--data", "a.csv", "--out", "done"], "`macl adapt done --labels TABLE`"),
        (["compare", "digits", "--vary", "los=macl"], "Did you mean 'loss'"),
        (["train", "digits", "epoch=3"], "Did you mean 'epochs'"),
        (["train", "topics", "--data", "a.csv", "data.column=txt"], "no column 'txt'"),
        (["train", "topics", "--data", "taken"], "taken is not a file. Give a .txt"),
        (["train", "clip-small", "--data", "a.csv"], "no column for the image"),
        (["train", "clip-small", "--data", "a.csv", "data.image=file"], "no column 'file'"),
        (["train", "clip-small", "--data", "taken"], "a folder of pairs has one table"),
        (["train", "chembl", "--data", "a.csv"], "no column is called smiles or mol"),
        (["train", "chembl", "--data", "a.csv", "data.column=txt"], "no column 'txt'"),
        (["train", "chembl", "--data", "taken"], "taken: is a folder"),
    ],
)
def test_a_mistake_is_reported_before_heavy_imports(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "a.csv").write_text("text,label\none,1\n")
    (tmp_path / "done").mkdir()
    for name in ("adapt.json", "report.html"):
        (tmp_path / "done" / name).write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(recipes.dump(recipes.load("digits")))
    done = python(MAIN.format(arguments=arguments), tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "heavy: []" in done.stdout


@pytest.mark.slow
def test_a_search_imports_only_what_its_encoder_needs(tmp_path: Path) -> None:
    """Most of the time of one search is start-up: torch, and torchvision for images."""
    from PIL import Image

    train = ["train", "digits", *SMALL[1:], "epochs=0", "--out", tmp_path / "run"]
    run(*train)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    run("embed", tmp_path / "run", tmp_path / "a.png", "-o", tmp_path / "v.npy")
    done = python(MAIN.format(arguments=["search", "run", "a.png", "--in", "v.npy"]), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "heavy: ['pandas', 'torch']" in done.stdout  # arrow looks for pandas by itself


def test_a_function_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['yaml'] = None\nimport macl\nmacl.train('digits')"
    done = python(code, tmp_path)
    assert "functions of macl.api need yaml: pip install 'macl[train]'" in done.stderr


def test_an_interrupt_while_loading_has_no_traceback(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'rich': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n" + MAIN.format(arguments=["recipes"])
    )
    done = python(code, tmp_path)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_next_command_is_one_that_works(tmp_path: Path) -> None:
    from PIL import Image

    labeled = run("train", "digits", *SMALL, "--out", tmp_path / "digits")
    assert f"next: macl evaluate {tmp_path / 'digits'}\n" in labeled.replace("\n ", " ")
    (tmp_path / "images").mkdir()
    for number in range(40):
        Image.new("RGB", (8, 8), (6 * number, 0, 0)).save(tmp_path / "images" / f"{number}.png")
    quick = ["workers=0", "views.size=8", *SMALL, "--data", tmp_path / "images"]
    unlabeled = run("train", "imagenette-small", *quick, "--out", tmp_path / "run")
    assert "macl evaluate" not in unlabeled
    assert "next: macl embed" in unlabeled


def test_sentences_without_labels_are_not_sent_to_evaluate(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "a.txt").write_text("".join(f"sentence number {i} of many\n" for i in range(64)))
    out = run(
        "train", "topics", "--data", tmp_path / "a.txt", "epochs=1", "batch_size=32",
        "encoder.width=16", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "macl evaluate" not in out
    assert "next: macl embed" in out


def test_the_summary_names_what_it_shows(tmp_path: Path) -> None:
    trained = run("train", "digits", *SMALL, "--out", tmp_path / "a").replace("\n", " ")
    assert re.search(r"done: loss .* kNN accuracy within the training data \d", trained)
    assert "floored" not in trained
    assert "monitor" not in trained
    initial = run("train", "digits", *SMALL[1:], "epochs=0", "--out", tmp_path / "b")
    assert "epochs=0 keeps the initial encoder" in initial
    assert "next:" not in initial


@pytest.mark.parametrize("figures", [{"loss": 0.0}, {"loss": 2.0, "gradient_scale": 0.001}])
def test_a_training_without_gradient_is_sent_to_diagnose(figures: dict[str, float]) -> None:
    from macl.cli.training import _next

    evaluation = recipes.load("digits").evaluation
    commands = _next(Path("run"), evaluation.protocols, evaluation, [figures])
    assert commands == ["macl diagnose run", "macl evaluate run"]
    assert _next(Path("run"), evaluation.protocols, evaluation, [{"loss": 2.0}]) == commands[1:]


def test_tables_off_a_terminal_fit_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    header = ["setting", *(f"a long name of column {i}" for i in range(12))]
    table("Wide", header, [["macl", *("1.234 ± 0.567" for _ in range(12))]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH == 100
    assert sum("1.234" in line for line in lines) == 12


def test_long_work_prints_lines_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert list(progress.track(range(6), "embedding", 6)) == list(range(6))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("embedding: ")
    assert lines[0].endswith(" of 6")
    with progress.silence():
        list(progress.track(range(3), "embedding", 3))
    assert capsys.readouterr().err == ""


def test_times_have_a_fitting_unit() -> None:
    assert time_text(4.28e-5) == "under a second"
    assert [time_text(h) for h in (0.0025, 0.2, 1.0, 3.52)] == [
        "9 seconds", "12 minutes", "1 hour", "3.5 hours",
    ]  # fmt: skip
