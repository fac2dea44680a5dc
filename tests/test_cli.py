"""The command line: commands, their output, and the messages for mistakes."""

from __future__ import annotations

import io
import json
import shlex
import shutil
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
from macl.cli import application
from macl.runs import Run
from tiny import TINY, python

FOLDER = (
    "workers=0", "epochs=1", "batch_size=8", "views.size=16", "encoder.width=8",
    "schedule.warmup_epochs=0", "monitor_every=1",
)  # fmt: skip


class Output(NamedTuple):
    code: int
    out: str
    err: str


Macl = Callable[..., Output]


@pytest.fixture
def run_macl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Macl:
    """`macl ARGUMENTS` in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MACL_RUN_FOLDER", raising=False)

    def run(*arguments: str | Path) -> Output:
        monkeypatch.setattr(sys, "argv", ["macl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return Output(0 if code is None else int(code), *capsys.readouterr())

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
        done = run_macl("train", "digits", *TINY, "evaluation.linear.epochs=2", "--out", folder)
        assert done.code == 0, done.err
        assert "done: loss" in done.err
        assert f"next: macl evaluate {folder}" in done.err
    return folder


@pytest.fixture
def unlabeled(run_macl: Macl, place: Path, pictures: Path) -> Path:
    """A finished run on the pictures."""
    folder = place / "unlabeled"
    if not folder.exists():
        done = run_macl("train", "imagenette-small", *FOLDER, "--data", pictures, "--out", folder)
        assert done.code == 0, done.err
    return folder


def assert_mistake(done: Output, *expected: str) -> None:
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith(("error: ", "  ")), done.err
    assert "Traceback" not in done.err
    for text in expected:
        assert text in done.err, done.err


def test_recipes_are_listed_and_shown(run_macl: Macl) -> None:
    done = run_macl("recipes")
    assert done.code == 0
    for name in ("digits", "simclr-imagenet1k", "moco-imagenet100", "nnclr-imagenet100"):
        assert name in done.out
    assert "images" in done.out
    assert "source: digits" in run_macl("recipes", "digits").out
    assert_mistake(run_macl("recipes", "digitz"), "Did you mean 'digits'?")


def test_evaluate_prints_and_records(run_macl: Macl, digits: Path) -> None:
    done = run_macl("evaluate", digits)
    assert done.code == 0, done.err
    scores = Run.open(digits).results()["scores"]
    assert {score["protocol"] for score in scores} == {"knn", "linear", "geometry"}
    top1 = next(s for s in scores if (s["protocol"], s["metric"]) == ("knn", "top1"))
    assert f"{top1['value']:.2f}" in done.out
    assert top1["value"] > 20  # chance is 10
    only = run_macl("evaluate", digits, "k=3", "--protocol", "knn")
    assert "knn" in only.out
    assert "linear" not in only.out


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".npz"])
def test_embed_names_what_it_embeds(
    suffix: str, run_macl: Macl, unlabeled: Path, pictures: Path, tmp_path: Path
) -> None:
    output = tmp_path / f"vectors{suffix}"
    done = run_macl("embed", unlabeled, pictures, "-o", output)
    assert done.code == 0, done.err
    assert "24 vectors of 32 dimensions" in done.err
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
    run = Run.open(unlabeled)
    alone = run.embed(run.modality.open(run.recipe.data, pictures / names[5]))
    torch.testing.assert_close(
        torch.tensor(vectors[5], dtype=torch.float32), alone[0], rtol=1e-4, atol=1e-5
    )


def test_skipped_input_is_a_message(run_macl: Macl, unlabeled: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "whole.png")
    (tmp_path / "broken.png").write_text("no picture")
    done = run_macl("embed", unlabeled, tmp_path, "-o", tmp_path / "out.npy", "data.on_error=skip")
    assert done.code == 0, done.err
    assert "warning: 1 of 2 image files cannot be used" in done.err
    assert "Warning" not in done.err.replace("warning", "")
    assert len(np.load(tmp_path / "out.npy")) == 1


def test_evaluating_without_labels_says_what_to_do(run_macl: Macl, unlabeled: Path) -> None:
    assert_mistake(run_macl("evaluate", unlabeled), "test", "data.test_split", "data.test_path")


def test_class_folders_make_evaluation_possible(
    run_macl: Macl, unlabeled: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / kind / f"{number}.png")
    done = run_macl("evaluate", unlabeled, "--data", tmp_path, "--protocol", "knn")
    assert done.code == 0, done.err
    assert "top1" in done.out


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
    done = run_macl("train", "digits", *quick)
    assert done.code == 0, done.err
    assert "into runs/digits-2" in done.err
    assert Run.open(Path("runs/digits-2")).is_finished


def test_mistakes_in_training(
    run_macl: Macl, digits: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    assert_mistake(run_macl("train", "digitss", "--out", new), "Did you mean 'digits'?")
    assert_mistake(run_macl("train", "digits", "epoch=1", "--out", new), "mean 'epochs'?")
    assert_mistake(run_macl("train", "digits", "--out", digits), "not empty", "--resume")
    assert_mistake(run_macl("train", "digits", "--out", new, "--resume"), "no run to resume")
    assert_mistake(run_macl("train", "digits", "--resume"), "no run to resume", "--out")
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
    run_macl: Macl, unlabeled: Path, pictures: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "v.npy"
    assert_mistake(run_macl("evaluate", tmp_path), "is not a run", "macl train")
    assert_mistake(run_macl("embed", tmp_path, pictures, "-o", vectors), "is not a run")
    assert_mistake(
        run_macl("embed", unlabeled, pictures, "-o", tmp_path / "v.txt"), ".parquet, .npy, .npz"
    )
    assert_mistake(run_macl("embed", unlabeled, tmp_path / "x", "-o", vectors), "no such file")
    assert_mistake(
        run_macl("embed", unlabeled, pictures, "-o", tmp_path / "no" / "v.npy"), "is not there"
    )
    assert_mistake(run_macl("evaluate", unlabeled, "--protocol", "sts"), "evaluation.protocols")


def test_markup_in_names_is_not_interpreted(run_macl: Macl) -> None:
    assert_mistake(run_macl("evaluate", "[bold]runs[/nothing]"), "[bold]runs[/nothing]")


def test_a_process_ends_with_the_code_and_without_traceback() -> None:
    done = python("macl_script.py", "recipes", "digitz")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no recipe is called 'digitz'.")
    assert "Traceback" not in done.stderr


COMMANDS = (
    "recipes", "train", "evaluate", "embed", "search", "export", "mine", "compare", "reproduce",
    "diagnose", "report", "adapt", "index", "tune",
)  # fmt: skip


def test_every_command_explains_itself(run_macl: Macl) -> None:
    for command in COMMANDS:
        done = run_macl(command, "--help")
        assert done.code == 0
        assert "Usage" in done.out
        assert "<bool>" not in done.out
    assert "--install-completion" in run_macl("--help").out


def test_every_option_has_a_help_text() -> None:
    import typer.main

    group = typer.main.get_command(application.app)
    assert set(group.commands) == set(COMMANDS)  # type: ignore[attr-defined]
    for name, command in {"macl": group, **group.commands}.items():  # type: ignore[attr-defined]
        assert command.help
        for parameter in command.params:
            text = parameter.help or ""
            assert len(text.split()) > 2, f"{name} {parameter.name}: {text}"
            assert text.endswith("."), f"{name} {parameter.name}: {text}"


def test_the_version(run_macl: Macl) -> None:
    assert run_macl("--version").out == f"macl {macl.__version__}\n"
    source = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "macl", "--version"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": source},
    )  # fmt: skip
    assert macl.__version__ in done.stdout


@pytest.mark.parametrize(
    "missing", ["typer", "pydantic", "lightning", pytest.param("rich", marks=pytest.mark.slow)]
)
def test_without_the_extra_a_command_says_what_to_install(missing: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['macl', 'train', 'digits', "
        f"'--out', {str(tmp_path / 'run')!r}]; from macl.cli import main; main()"
    )
    source = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source}
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the commands of macl need {missing}: pip install 'macl[train]'\n"
    )


@pytest.mark.slow
def test_embedding_does_not_load_what_only_training_needs(
    unlabeled: Path, pictures: Path, tmp_path: Path
) -> None:
    """Imports are most of the time of embedding one picture."""
    one = next(pictures.glob("*.png"))
    code = (
        f"import json, sys; sys.argv = ['macl', 'embed', {str(unlabeled)!r}, {str(one)!r}, '-o', "
        f"{str(tmp_path / 'v.npy')!r}]\n"
        "from macl.cli import main\n"
        "try: main()\n"
        "finally: print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    source = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source}
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert not loaded & {"lightning", "sklearn", "pandas", "matplotlib", "transformers", "scipy"}


ODD_NAMES = ("my #1 set", "a: b", "[x]", "~", "null", "two  spaces", "größe 日本", "{y}", "1")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_paths_arrive_unchanged(
    name: str, run_macl: Macl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for number in range(2):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    quick = ("epochs=0", "batch_size=2", "views.size=16", "encoder.width=8", "workers=0")
    done = run_macl("train", "imagenette-small", *quick, "--data", name, "--out", "run")
    assert done.code == 0, done.err
    assert Run.open(tmp_path / "run").recipe.data.path == tmp_path / name
    monkeypatch.chdir("/")
    vectors = tmp_path / "v.npz"
    done = run_macl("embed", tmp_path / "run", tmp_path / name, "-o", vectors)
    assert done.code == 0, done.err
    assert np.load(vectors)["vectors"].shape == (2, 32)


@pytest.fixture
def sentences(run_macl: Macl, place: Path) -> Path:
    """A finished run on a file of sentences with an odd name."""
    pytest.importorskip("transformers")
    folder, file = place / "sentences", place / "null: #1.txt"
    if not folder.exists():
        file.write_text("one two three\nfour five six\nseven eight nine\n")
        quick = ("epochs=0", "batch_size=2", "encoder.width=16", "encoder.layers=1",
                 "encoder.heads=2", "monitor_every=0")  # fmt: skip
        done = run_macl("train", "topics", *quick, "--data", file, "--out", folder)
        assert done.code == 0, done.err
        assert str(Run.open(folder).recipe.data.path) == str(file)
    return folder


def test_embed_reads_standard_input(
    run_macl: Macl, sentences: Path, unlabeled: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO("a first\n\nand a second\n"))
    done = run_macl("embed", sentences, "-", "-o", tmp_path / "v.npz")
    assert done.code == 0, done.err
    assert np.load(tmp_path / "v.npz")["names"].tolist() == ["a first", "and a second"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert_mistake(run_macl("embed", sentences, "-", "-o", tmp_path / "w.npz"), "is empty")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a.png\n"))
    assert_mistake(run_macl("embed", unlabeled, "-", "-o", tmp_path / "w.npz"), "images")


def test_embed_overwrites_only_with_the_flag(
    run_macl: Macl, unlabeled: Path, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "keep.txt").write_text("mine")
    done = run_macl("embed", unlabeled, pictures, "-o", tmp_path / "keep.npy")
    assert done.code == 0, done.err
    assert str(tmp_path / "keep.names.txt") in done.err
    assert (tmp_path / "keep.txt").read_text() == "mine"
    again = ("embed", unlabeled, pictures, "-o", tmp_path / "keep.npy")
    assert_mistake(run_macl(*again), "keep.npy", "--overwrite")
    (tmp_path / "keep.npy").unlink()
    assert_mistake(run_macl(*again), "keep.names.txt", "--overwrite")
    assert run_macl(*again, "--overwrite").code == 0
    assert len(np.load(tmp_path / "keep.npy")) == 24


def test_a_run_folder_is_not_trained_again_by_accident(
    run_macl: Macl, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_mistake(run_macl("train", digits), "is a run folder", "--resume", "--out")
    assert not list(tmp_path.iterdir())


def test_suggested_commands_are_quoted(run_macl: Macl, tmp_path: Path) -> None:
    folder = tmp_path / "it's [a] run"
    quick = ("epochs=1", "data.limit=40", "batch_size=32", "schedule.warmup_epochs=0")
    done = run_macl("train", "digits", *quick, "monitor_every=0", "--out", folder)
    assert done.code == 0, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("next: ")]
    assert shlex.split(line.removeprefix("next: ")) == ["macl", "evaluate", str(folder)]


def test_training_is_announced_after_the_checks(run_macl: Macl, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    given = ("imagenette-small", "--data", tmp_path / "empty", "--out", tmp_path / "run")
    done = run_macl("train", *given)
    assert done.code == 2
    assert not any(line.startswith("training") for line in done.err.splitlines())


def test_a_broken_recipe_of_a_run_is_named(run_macl: Macl, digits: Path, tmp_path: Path) -> None:
    for text in ("a: [", "epoch: 3\n" + (digits / "recipe.yaml").read_text()):
        (tmp_path / "recipe.yaml").write_text(text)
        for command in (("evaluate",), ("diagnose",), ("train", "--resume")):
            done = run_macl(command[0], tmp_path, *command[1:])
            assert_mistake(done, str(tmp_path / "recipe.yaml"))


def test_training_into_a_file_shows_that_it_works(digits: Path, run_macl: Macl) -> None:
    """Standard error is no terminal here."""
    folder = digits.with_name("lines")
    done = run_macl("train", "digits", *TINY, "--out", folder)
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert f"training digits into {folder}" in lines
    assert any(line.startswith("epoch 1 of 2, step 1, loss ") for line in lines), done.err


def test_progress_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    from macl.cli.progress import progress_lines

    class Trainer:
        current_epoch, max_epochs, global_step = 0, 5, 7

    now = 0.0
    lines, shown = progress_lines(seconds=30, clock=lambda: now), []
    for now in (0.0, 10.0, 29.0, 31.0, 45.0, 62.0):  # noqa: B007  the clock shows it
        lines.on_train_batch_end(Trainer(), None, None)  # type: ignore[arg-type, call-arg]
        shown.append("epoch 1 of 5, step 7" in capsys.readouterr().err)
    assert shown == [True, False, False, True, False, True]


def test_wide_tables_are_blocks_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from macl.cli.console import table

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    header = ["loss", *(f"protocol metric {number}" for number in range(9))]
    table("wide", header, [["macl", *(f"{number}.00 ± 0.00" for number in range(9))]])
    out = capsys.readouterr().out
    assert out.count("macl") == 9
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_finished_run_is_extended(run_macl: Macl, tmp_path: Path) -> None:
    folder, quick = tmp_path / "run", ("data.limit=64", "batch_size=32", "monitor_every=0")
    assert run_macl("train", "digits", *quick, "epochs=1", "--out", folder).code == 0
    done = run_macl("train", folder, "--resume", "epochs=3")
    assert done.code == 0, done.err
    assert Run.open(folder).metrics()[-1]["step"] == 6
    finished = run_macl("train", folder, "--resume")
    assert finished.code == 0
    assert "finished already" in finished.err


def test_an_unfinished_run_is_used_with_a_note(
    run_macl: Macl, digits: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(digits, folder)
    for name in ("encoder.safetensors", "results.json"):
        (folder / name).unlink(missing_ok=True)
    for command in (("evaluate", "--protocol", "knn"), ("diagnose",)):
        done = run_macl(command[0], folder, *command[1:])
        assert done.code == 0, done.err
        assert "is unfinished" in done.err


def test_a_finished_run_with_an_edited_recipe_is_refused(run_macl: Macl, tmp_path: Path) -> None:
    folder, quick = tmp_path / "run", ("data.limit=64", "batch_size=32", "monitor_every=0")
    assert run_macl("train", "digits", *quick, "epochs=1", "--out", folder).code == 0
    file = folder / "recipe.yaml"
    file.write_text(file.read_text().replace("alpha: 0.5", "alpha: 0.25"))
    assert_mistake(run_macl("train", folder, "--resume"), "loss.alpha")
