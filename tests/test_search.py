"""Search among stored vectors: every format, text and file as the query, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import macl
import recipe_texts
from macl.cli.application import app
from macl.core.errors import UserError
from macl.core.similarity import nearest_by_cosine
from macl.runs.vectors import Vectors, read_vectors
from macl.training.fit import train
from shared import trained
from tiny import HERE, recipe


def test_cosines_equal_a_loop_and_broken_keys_come_last() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(6).double(), torch.randn(50, 6).double()
    keys[3], keys[4] = 0.0, torch.nan
    scores, rows = (found[0] for found in nearest_by_cosine(query[None], keys, 60))
    slow = []
    for row in range(50):
        length = float((keys[row] ** 2).sum()) ** 0.5 * float((query**2).sum()) ** 0.5
        product = sum(float(a * b) for a, b in zip(query, keys[row], strict=True))
        slow.append((-product / length if length > 0 else torch.inf, row))
    expected = sorted(pair for pair in slow if pair[1] not in (3, 4))
    assert rows[:48].tolist() == [row for _, row in expected]
    torch.testing.assert_close(scores[:48], torch.tensor([-s for s, _ in expected]).double())
    assert set(rows[48:].tolist()) == {3, 4}


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".npy", ".csv"])
def test_vectors_are_read_as_written(tmp_path: Path, suffix: str) -> None:
    values, names = torch.randn(3, 4), ["a", "b, c", "d\u2028e"]
    path = tmp_path / f"v{suffix}"
    Vectors(values, names, rows=[1, 2, 4]).save(path)
    stored = read_vectors(path)
    assert stored.names == names
    torch.testing.assert_close(stored.values, values)
    path.write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot be read as vectors"):
        read_vectors(path)


def test_a_picture_finds_itself(tmp_path: Path) -> None:
    from PIL import Image

    run = trained(recipe("epochs=1"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (8, 8), (50 * number, 100, 0)).save(folder / f"{number}.png")
    vectors = macl.embed(run, folder)
    vectors.save(tmp_path / "v.parquet")
    found = macl.search(run, folder / "3.png", tmp_path / "v.parquet", k=2)
    assert (found[0].name, found[0].row, len(found)) == ("3.png", 3, 2)
    assert found[0].score == pytest.approx(1, abs=1e-4)
    assert [m.name for m in macl.search(run, folder / "3.png", vectors, k=2)] == [
        m.name for m in found
    ]
    with pytest.raises(UserError, match="holds 5 items"):
        macl.search(run, folder, vectors)
    with pytest.raises(UserError, match="made by another encoder"):
        macl.search(run, folder / "3.png", macl.Vectors(torch.zeros(2, 3), ["a", "b"]))
    asked = ["search", run.folder, folder / "3.png", "--in", tmp_path / "v.parquet", "-k", "1"]
    done = CliRunner().invoke(app, [str(part) for part in asked])
    assert done.exit_code == 0
    assert "3.png" in done.stdout


def test_a_sentence_is_a_query(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = recipe_texts.load("topics", ["epochs=0", "data.limit=100", "encoder.width=16"])
    run = train(small, tmp_path / "run", compute=HERE)
    sentences = ["a list of numbers", "open a file", "send a message"]
    vectors = macl.embed(run, sentences)
    assert macl.search(run, "open a file", vectors)[0].name == "open a file"
    broken = macl.embed(run, ["open\na file", "send a\r\n\nmessage"])
    assert broken.names == ["open a file", "send a  message"]
    torch.testing.assert_close(broken.values[0], vectors.values[1])
    with pytest.raises(UserError, match="entry 2 of 3 is empty"):
        macl.embed(run, ["open a file", " \n", "send a message"])
