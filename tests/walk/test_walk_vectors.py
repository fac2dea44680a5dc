"""Vectors know the encoder that made them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import macl
from macl.core.errors import UserError
from macl.runs.vectors import fingerprint, read_vectors
from macl.training.fit import train
from tiny import HERE, recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two untrained runs of the same width, and five images."""
    folder = tmp_path_factory.mktemp("vectors")
    for seed in (0, 1):
        train(recipe("epochs=0", f"seed={seed}"), folder / f"run{seed}", compute=HERE)
    (folder / "images").mkdir()
    for number in range(5):
        Image.new("RGB", (8, 8), (50 * number, 100, 0)).save(folder / f"images/{number}.png")
    return folder


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".npy", ".csv"])
def test_vectors_of_another_run_are_refused(place: Path, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"v{suffix}"
    macl.embed(place / "run0", place / "images").save(file)
    query = place / "images" / "3.png"
    assert macl.search(place / "run0", query, file, k=1)[0].name == "3.png"
    with pytest.raises(UserError, match="made by another encoder"):
        macl.search(place / "run1", query, file)


def test_a_file_without_a_fingerprint_is_searched(place: Path, tmp_path: Path) -> None:
    vectors = macl.embed(place / "run0", place / "images")
    file = tmp_path / "old.npz"
    np.savez(file, vectors=vectors.values.numpy(), names=np.array(vectors.names))
    assert read_vectors(file).encoder == ""
    assert macl.search(place / "run0", place / "images" / "3.png", file, k=1)[0].name == "3.png"


def test_a_fingerprint_is_of_the_weights() -> None:
    torch.manual_seed(0)
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert fingerprint(one) != fingerprint(two)
    two.load_state_dict(one.state_dict())
    assert fingerprint(one) == fingerprint(two)


def test_a_query_of_many_items_is_refused_before_any_is_encoded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = macl.embed(place / "run0", place / "images")
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_: pytest.fail("encoded"))
    with pytest.raises(UserError, match="holds 5 items; a query is one item"):
        macl.search(place / "run0", place / "images", vectors)
