"""A package with a fifth modality, a loss, a method and a recipe works with every command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import macl

SOURCE = Path(__file__).parent / "toy_package"

COMMANDS = """
import json, sys
from macl.cli.application import app

for arguments in json.load(sys.stdin):
    try:
        app([*arguments], standalone_mode=False)
    except SystemExit as stop:
        if stop.code:
            raise
"""

LISTING = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from macl import modalities, recipes
    from macl.core import plugins
    found = {
        "modalities": modalities.names(),
        "losses": plugins.names("macl.losses"),
        "recipes": list(recipes.available()),
    }
    recipes.available()
    found["torch"] = "torch" in sys.modules
    found["warnings"] = [str(each.message) for each in caught]
    try:
        plugins.load("macl.losses", "broken-loss")
    except plugins.UserError as error:
        found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the toy package is built and installed, without the network."""
    pytest.importorskip("pip", reason="needs pip to build and install a package")
    folder = tmp_path_factory.mktemp("site")
    copy = shutil.copytree(SOURCE, folder / "source")  # pip leaves its build folder behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(folder / "installed"), str(copy)],
        check=True,
        timeout=300,
    )
    return folder / "installed"


def python(site: Path, code: str, folder: Path, **more: str) -> str:
    """The output of `code` in a new interpreter that finds macl and the installed package."""
    paths = [str(site), str(Path(macl.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_works_with_the_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("".join(f"{i},{i + 1},{i * i},3\n" for i in range(9)))
    commands = [
        ["train", "sequences", "--out", "run"],
        ["evaluate", "run"],
        ["embed", "run", "mine.csv", "-o", "vectors.npz", "data.limit=7"],
        ["diagnose", "run", "--items", "40"],
        ["report", "run", "--projection", "pca", "-o", "page.html"],
        ["compare", "sequences", "--vary", "loss=soft-nt-xent,macl", "--seeds", "1",
         "epochs=1", "--out", "grid"],
        ["export", "run", "exported"],
        ["evaluate", "--encoder", "exported/encoder.safetensors", "k=3", "-o", "scores.json"],
    ]  # fmt: skip
    output = python(site, COMMANDS, tmp_path, input=json.dumps(commands))
    assert "knn" in output
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [(s["protocol"], s["metric"]) for s in results["scores"]] == [("knn", "top1")]
    assert np.load(tmp_path / "vectors.npz")["vectors"].shape == (7, 32)
    assert (tmp_path / "run" / "diagnosis.json").is_file()
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "4 Hz" in page
    assert list((tmp_path / "grid").glob("**/results.json"))
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert scores[0]["protocol"] == "knn"


def test_listing_imports_no_torch_and_a_broken_plug_in_is_one_warning(
    site: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text(
        "[macl.losses]\nbroken-loss = no_such_package:Loss\n"
        "[macl.recipes]\nbroken-recipes = no_such_package.recipes\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LISTING}"
    found = json.loads(python(site, code, tmp_path))
    built_in = ["images", "text", "graphs", "molecules", "image-text"]
    assert found["modalities"] == [*built_in, "sequences"]
    assert found["losses"] == ["broken-loss", "soft-nt-xent"]
    assert "sequences" in found["recipes"]
    assert "digits" in found["recipes"]
    assert not found["torch"]
    (warning,) = found["warnings"]
    for name, text in (("broken-recipes", warning), ("broken-loss", found["refused"])):
        assert repr(name) in text
        assert "of the package broken" in text


def test_a_mistake_in_the_package_s_recipe_is_named(site: Path, tmp_path: Path) -> None:
    code = (
        "from macl import recipes\n"
        "for key in ('views.nois', 'method.nose', 'loss.temp'):\n"
        "    try:\n        recipes.load('sequences', {key: 1})\n"
        "    except Exception as error:\n        print(error)\n"
    )
    lines = python(site, code, tmp_path).splitlines()
    assert [line.partition(".  ")[0].split("'")[1] for line in lines] == [
        "views.nois", "method.nose", "loss.temp",
    ]  # fmt: skip
