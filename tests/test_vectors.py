"""Vectors on file with their names."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from macl.core.errors import UserError
from macl.modalities.protocols import SkippedRow
from macl.runs.vectors import SUFFIXES, Vectors, check_output

NAMES = ["a.png", "with, comma.png", "ünïcode 图.png"]
VECTORS = torch.arange(6.0).view(3, 2)


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return np.array(table["vector"].to_pylist(), np.float32), table["name"].to_pylist()
    if path.suffix == ".npz":
        file = np.load(path, allow_pickle=False)
        return file["vectors"], file["names"].tolist()
    if path.suffix == ".csv":
        table = pd.read_csv(path)
        return table.drop(columns="name").to_numpy(np.float32), table["name"].tolist()
    names = path.with_suffix(".names.txt").read_text(encoding="utf-8").splitlines()
    return np.load(path, allow_pickle=False), names


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_there_and_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    Vectors(VECTORS, NAMES).save(path)
    vectors, names = read(path)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, VECTORS.numpy())
    assert names == NAMES


def test_parquet_rows_are_fixed_size_lists(tmp_path: Path) -> None:
    Vectors(VECTORS, NAMES).save(tmp_path / "v.parquet")
    assert str(pq.read_schema(tmp_path / "v.parquet").field("vector").type).startswith(
        "fixed_size_list<element: float>[2]"
    )


def test_double_vectors_are_written_as_single(tmp_path: Path) -> None:
    Vectors(VECTORS.double(), NAMES).save(tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").dtype == np.float32


@pytest.mark.parametrize("name", ["vectors.txt", "vectors", "vectors.npy.gz"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.parquet, \.npy, \.npz, \.csv"):
        check_output(tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not there"):
        Vectors(VECTORS, NAMES).save(tmp_path / "nowhere" / "v.npy")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_room_leaves_what_was_there(suffix: str, tmp_path: Path) -> None:
    """The limit on file sizes stands for a disk that fills up."""
    path = tmp_path / f"vectors{suffix}"
    Vectors(VECTORS, NAMES).save(path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"could not write.*untouched; free some space"):
            Vectors(torch.rand(3, 100_000), NAMES).save(path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_place_that_takes_no_files_is_reported() -> None:
    with pytest.raises(UserError, match=r"could not write /proc/v\.npy"):
        Vectors(VECTORS, NAMES).save(Path("/proc/v.npy"))


@pytest.mark.parametrize("taken", ["keep.npy", "keep.names.txt"])
def test_nothing_is_overwritten_unasked(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(UserError, match=rf"{taken}: already there.*`overwrite=True`"):
        Vectors(VECTORS, NAMES).save(tmp_path / "keep.npy")
    assert (tmp_path / taken).read_text() == "mine"
    assert Vectors(VECTORS, NAMES).save(tmp_path / "keep.npy", overwrite=True) == [
        tmp_path / "keep.npy",
        tmp_path / "keep.names.txt",
    ]
    assert read(tmp_path / "keep.npy")[1] == NAMES


def test_a_text_file_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("mine")
    Vectors(VECTORS, NAMES).save(tmp_path / "keep.npy")
    assert (tmp_path / "keep.txt").read_text() == "mine"


def test_rows_and_skipped_rows_are_written(tmp_path: Path) -> None:
    skipped = [SkippedRow(2, "bad, one", "no molecule")]
    vectors = Vectors(VECTORS, NAMES, rows=[1, 3, 4], skipped=skipped)
    for suffix in (".parquet", ".csv", ".npz"):
        path = tmp_path / f"v{suffix}"
        assert vectors.save(path, overwrite=True) == [path, tmp_path / "v.skipped.csv"]
    assert pq.read_table(tmp_path / "v.parquet")["row"].to_pylist() == [1, 3, 4]
    assert pd.read_csv(tmp_path / "v.csv")["row"].tolist() == [1, 3, 4]
    assert np.load(tmp_path / "v.npz")["rows"].tolist() == [1, 3, 4]
    listed = pd.read_csv(tmp_path / "v.skipped.csv")
    assert listed.to_dict("records") == [{"row": 2, "name": "bad, one", "reason": "no molecule"}]
