"""Columns that a viewer of embeddings reads beside the vectors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import macl
from macl.api import add_map
from macl.core.errors import UserError
from shared import trained
from tiny import forked_macl, recipe

parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for shade in (10, 90, 200):
        Image.new("L", (8, 8), shade).save(folder / f"{shade}.png")
    return folder


def test_pictures_get_a_plane_and_thumbnails(pictures: Path, tmp_path: Path) -> None:
    run = trained(recipe("epochs=1"))
    file = tmp_path / "items.parquet"
    vectors = macl.embed(run, pictures)
    vectors.save(file)
    assert add_map(file, run, pictures, projection="pca") == ["x", "y", "image"]
    table = parquet.read_table(file).to_pydict()
    assert {"name", "vector"} <= table.keys()
    assert all(0 <= value <= 1 for axis in "xy" for value in table[axis])
    assert len(set(table["x"])) == 3
    for name, image in zip(table["name"], table["image"], strict=True):
        shown = Image.open(io.BytesIO(image["bytes"]))
        assert abs(shown.getpixel((0, 0))[0] - int(Path(name).stem)) <= 1
    # It is still a file of vectors, and searched as one.
    assert macl.search(run, pictures / "90.png", file, k=1)[0].name.endswith("90.png")
    (pictures / "10.png").unlink()
    with pytest.raises(UserError, match="does not hold the items"):
        add_map(file, run, pictures)


def test_the_command(pictures: Path, tmp_path: Path) -> None:
    folder = trained(recipe("epochs=1")).folder
    done = forked_macl("embed", folder, pictures, "-o", tmp_path / "a.parquet", "--map")
    assert done.returncode == 0, done.stderr
    assert {"x", "y", "image"} <= set(parquet.read_schema(tmp_path / "a.parquet").names)
    refused = forked_macl("embed", folder, pictures, "-o", tmp_path / "a.npy", "--map")
    assert refused.returncode == 2
    assert ".parquet" in refused.stderr


@pytest.mark.slow
def test_the_viewer_opens_the_file(pictures: Path, tmp_path: Path) -> None:
    """embedding-atlas takes the columns as they are: no model is loaded and nothing projected."""
    pytest.importorskip("embedding_atlas", reason="needs embedding-atlas (macl[bench])")
    run = trained(recipe("epochs=1"))
    file = tmp_path / "items.parquet"
    macl.embed(run, pictures).save(file)
    add_map(file, run, pictures, projection="pca")
    command = [sys.executable, "-c", "from embedding_atlas.cli import main; main()", str(file)]
    command += ["--vector", "vector", "--x", "x", "--y", "y", "--image", "image"]
    command += ["--export-application", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "site/data/metadata.json").read_text())["props"]["data"]
    assert about["projection"] == {"x": "x", "y": "y"}
    assert about["image"] == "image"
    shown = parquet.read_table(tmp_path / "site/data/dataset.parquet").to_pydict()
    stored = parquet.read_table(file).to_pydict()
    for column in ("name", "x", "y", "image"):
        assert shown[column] == stored[column]
