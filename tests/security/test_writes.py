"""Nothing is written or removed outside of the folder that the user named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import tiny
from macl import api
from macl.core import files
from macl.core.errors import UserError
from macl.core.files import atomic_folder, atomic_write, remove_partial
from macl.runs import Run
from macl.training.fit import train


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user, outside of every run."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run; copy it before changing it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny.recipe("epochs=1", "data.limit=70"), folder, compute=tiny.HERE)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    import shutil

    return shutil.copytree(trained, tmp_path / "run")


def test_a_link_under_a_predictable_temporary_name_is_not_followed(
    tmp_path: Path, victim: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f".report.html.{os.getpid()}.partial").symlink_to(victim)
    atomic_write(folder / "report.html", lambda file: file.write(b"page"))
    assert victim.read_bytes() == b"precious"
    assert (folder / "report.html").read_bytes() == b"page"


def test_temporary_names_differ_and_a_file_under_one_is_never_opened(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    assert files.partial_name(path) != files.partial_name(path)
    monkeypatch.setattr(files, "partial_name", lambda path: ".guessed")
    for make in ((tmp_path / ".guessed").symlink_to, (tmp_path / ".guessed").hardlink_to):
        make(victim)
        with pytest.raises(UserError, match="could not write"):
            atomic_write(path, lambda file: file.write(b"page"))
        assert victim.read_bytes() == b"precious"
        assert not path.exists()
        (tmp_path / ".guessed").unlink()


def test_a_link_at_the_target_is_replaced(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "results.json").symlink_to(victim)
    atomic_write(tmp_path / "results.json", lambda file: file.write(b"{}"))
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "results.json").is_symlink()


def test_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    atomic_write(path, lambda file: file.write(b"x"))
    assert os.listdir(tmp_path) == [path.name]


def test_only_abandoned_temporary_files_of_this_form_are_removed(tmp_path: Path) -> None:
    kept = [".mine.partial", ".x.0123.partial", "x.0123456789abcdef.partial"]
    for name in (*kept, ".last.ckpt.0123456789abcdef.partial"):
        (tmp_path / name).touch()
    link = tmp_path / ".l.00000000000000aa.partial"
    link.symlink_to(tmp_path / kept[0])
    with atomic_folder(tmp_path / "made") as made:
        (made / "file").touch()

        def write(file: object) -> None:
            remove_partial(tmp_path)  # by another process, at any time
            assert made.is_dir()

        atomic_write(tmp_path / "new", write)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, link.name, "new", "made"])


def test_leftovers_of_a_killed_export_are_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / files.partial_name(tmp_path / "out")
    left.mkdir()
    (left / "encoder.safetensors").write_bytes(b"half")
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "file").touch()
    assert os.listdir(tmp_path) == ["out"]


def test_leftovers_anywhere_in_a_folder_are_removed_by_its_next_owner(tmp_path: Path) -> None:
    """As of an adaptation that was killed while it wrote the recipe of one of its runs."""
    place = tmp_path / "out" / "runs" / "original"
    place.mkdir(parents=True)
    (place / files.partial_name(place / "recipe.yaml")).touch()
    with files.owned_folder(tmp_path / "out"):
        assert os.listdir(place) == []


@pytest.mark.parametrize("part", ["checkpoints", "best"])
def test_a_run_whose_folders_lead_elsewhere_is_refused(
    part: str, run: Path, tmp_path: Path
) -> None:
    """Resuming replaced the encoder there, and removed temporary files."""
    elsewhere = tmp_path / "elsewhere"
    if (run / part).exists():
        (run / part).rename(elsewhere)
    else:
        elsewhere.mkdir()
    left = elsewhere / ".encoder.safetensors.0123456789abcdef.partial"
    left.touch()
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    (run / part).symlink_to(elsewhere)
    longer = tiny.recipe("epochs=2", "data.limit=70")
    for attempt in (
        lambda: train(longer, run, resume=True, compute=tiny.HERE),
        lambda: Run.open(run),
        lambda: api.evaluate(run),
        lambda: api.report(run),
        lambda: api.export(run, tmp_path / "out"),
    ):
        with pytest.raises(UserError, match=rf"{part} is a link to .*must be real files"):
            attempt()
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_pipes_in_a_run_are_refused_and_links_within_it_are_not(run: Path) -> None:
    (run / "logs").mkdir()
    (run / "logs" / "latest").symlink_to("../metrics.csv")
    assert torch.is_tensor(next(Run.open(run).encoder.parameters()))
    os.mkfifo(run / "logs" / "results.json")
    with pytest.raises(UserError, match=r"logs/results\.json is a pipe"):
        Run.open(run)
