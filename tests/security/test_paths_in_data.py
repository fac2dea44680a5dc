"""Paths that data names stay inside the data set, and lead to regular files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from macl.core.errors import SkippedInputWarning, UserError
from macl.core.inside import ALLOW_OUTSIDE, file_inside
from macl.modalities.image_text.data import load_pairs
from macl.modalities.image_text.sections import PairDataConfig
from macl.modalities.images.data import ImageDataConfig, load_images, open_images
from macl.modalities.records import open_records


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return picture(tmp_path / "home" / "secret.png")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a stranger's data set, with a picture of its own."""
    return picture(tmp_path / "data" / "own.png").parent


def parquet(data: Path, *paths: str) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"bytes": None, "path": path} for path in paths]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(rows, kind), "text": ["a caption"] * len(rows)})
    pq.write_table(table, data / "data.parquet")
    return data / "data.parquet"


def test_a_parquet_file_reads_nothing_outside_its_folder(
    data: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    os.mkfifo(data / "pipe.png")
    (data / "link.png").symlink_to(secret)
    names = [
        str(secret),
        "/dev/zero",
        "../home/secret.png",
        "link.png",
        "pipe.png",
        "x\0",
        "own.png",
    ]
    records = open_records(parquet(data, *names))
    assert records is not None
    for index in range(len(names) - 1):
        with pytest.raises(UserError, match=r"outside of|not a regular file|null"):
            records.image(index)
        assert records.image_problem(index) is not None
    assert records.image_problem(len(names) - 1) is None
    monkeypatch.setenv(ALLOW_OUTSIDE, str(secret.parent))
    assert records.image(0) == secret.read_bytes()
    with pytest.raises(UserError, match=r"zero is outside of .*MACL_ALLOW_OUTSIDE"):
        records.image(1)


def test_a_saved_data_set_names_files_of_its_own(data: Path, secret: Path) -> None:
    datasets = pytest.importorskip("datasets")
    content = io.BytesIO(secret.read_bytes()).getvalue()
    rows = {"image": [{"bytes": content, "path": None}] * 2}
    for place in (data / "own", secret.parent / "theirs"):
        datasets.Dataset.from_dict(rows).save_to_disk(str(place))
    assert open_records(data / "own") is not None
    state = json.loads((data / "own" / "state.json").read_text())
    theirs = next((secret.parent / "theirs").glob("*.arrow"))
    state["_data_files"] = [{"filename": str(theirs)}]
    (data / "own" / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="outside of"):
        open_records(data / "own")


def test_a_table_of_pairs_names_pictures_of_its_own(data: Path, secret: Path) -> None:
    lines = ["image,caption", "own.png,one", "./own.png,two", f"{secret},three"]
    (data / "pairs.csv").write_text("\n".join(lines))
    config = PairDataConfig(path=data / "pairs.csv", on_error="skip", holdout=0)
    with pytest.warns(SkippedInputWarning, match=r"1 of 3 pairs.*\n.*secret\.png is outside"):
        pairs = load_pairs(config, "train")
    assert list(pairs.names) == ["own.png", "./own.png"]
    assert pairs[0][0].shape == (3, 8, 8)


def test_pipes_and_devices_with_picture_names_are_skipped_and_counted(data: Path) -> None:
    picture(data / "second.png")
    os.mkfifo(data / "pipe.png")
    (data / "zero.png").symlink_to("/dev/zero")
    with pytest.warns(SkippedInputWarning, match="2 of 4 files in .* are pipes, sockets or dev"):
        images = load_images(ImageDataConfig(path=data), "train")
    assert sorted(images.names) == ["own.png", "second.png"]
    with pytest.raises(UserError, match="not a regular file"):
        open_images(ImageDataConfig(), data / "pipe.png")


def test_an_encoder_folder_names_modules_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from macl.modalities.text.folders import read_style

    folder = tmp_path / "encoder"
    folder.mkdir()
    listed = [{"type": "x.Transformer", "path": "../other"}, {"type": "x.Pooling", "path": "1"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match="names a module outside of"):
        read_style(folder)


@pytest.mark.parametrize("name", ["a" * 5000, "", ".", "a/" * 3000, "loop"])
def test_strange_names_are_refused_with_a_message(name: str, data: Path) -> None:
    (data / "loop").symlink_to("loop")
    with pytest.raises(UserError):
        file_inside(data, name)
