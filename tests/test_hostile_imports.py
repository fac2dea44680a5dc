"""A recipe file or a run folder runs no code unless the user allows it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

import recipe_texts
from macl import recipes
from macl.cli.application import app
from macl.core.errors import UserError
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, recipe


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that makes a folder when it is imported; returns that folder, not yet there."""
    trace = tmp_path / "trace"
    (tmp_path / "a_trap.py").write_text(
        f"import os\nfrom fragile import plain\nos.mkdir({str(trace)!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MACL_ALLOW_IMPORTS", "0")
    sys.modules.pop("a_trap", None)
    return trace


GRANT = ("encoder.width=null", "encoder.name=a_trap:plain", "encoder.allow_import=true")


@pytest.fixture
def hostile(tmp_path: Path, trap: Path) -> Path:
    """A recipe file that allows itself to import."""
    path = tmp_path / "hostile.yaml"
    made = recipe("epochs=1", "data.limit=70", "monitor_every=0", *GRANT)
    path.write_text(recipes.dump(made))
    assert yaml.safe_load(path.read_text())["encoder"]["allow_import"] is True
    return path


def test_a_file_cannot_allow_itself(hostile: Path, trap: Path) -> None:
    for overrides in ([], ["epochs=2"], ["encoder.name=a_trap:plain"]):
        with pytest.raises(UserError, match=r"hostile\.yaml would import.*MACL_ALLOW_IMPORTS"):
            recipe_texts.load(str(hostile), overrides)
    assert not trap.exists()


def test_the_command_line_can(
    hostile: Path, trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it allowed, the same process may go on with."""
    made = recipe_texts.load(str(hostile), ["encoder.allow_import=true"])
    run = train(made, tmp_path / "run", compute=HERE)
    assert trap.exists()
    assert run.encoder.out_dim == 16
    with pytest.raises(UserError, match="would import"):
        Run.open(run.folder)
    monkeypatch.setenv("MACL_ALLOW_IMPORTS", "1")
    assert Run.open(run.folder).encoder.out_dim == 16
    assert recipes.load(str(hostile)) == made


def test_no_command_opens_a_strange_run_by_itself(
    hostile: Path, trap: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    hostile.rename(folder / "recipe.yaml")
    (folder / "encoder.safetensors").write_bytes(b"")
    commands: list[list[str | Path]] = [
        ["train", folder, "--resume"],
        ["train", folder / "recipe.yaml", "--out", tmp_path / "new"],
        ["evaluate", folder],
        ["embed", folder, tmp_path, "-o", tmp_path / "x.npy"],
        ["export", folder, tmp_path / "out"],
        ["compare", folder / "recipe.yaml", "--out", tmp_path / "many"],
        ["adapt", folder, "--data", tmp_path, "--out", tmp_path / "adapted"],
        ["adapt", tmp_path / "done", "--labels", tmp_path / "labels.csv"],
    ]
    (tmp_path / "done" / "runs").mkdir(parents=True)
    (tmp_path / "done" / "adapt.json").write_text("{}")
    (tmp_path / "labels.csv").write_text("name,label\na,b\n")
    for name in ("original", "seed-0"):
        shutil.copytree(folder, tmp_path / "done" / "runs" / name)
    for command in commands:
        with pytest.raises(UserError, match="would import and run Python code"):
            app([*map(str, command)], standalone_mode=False)
    assert not trap.exists()
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        app(
            ["--allow-imports", "export", str(folder), str(tmp_path / "out")], standalone_mode=False
        )
    assert trap.exists()
