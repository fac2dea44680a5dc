"""Pairs from tables: columns, splits, concepts, several captions, broken rows, either side."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from macl.core.errors import SkippedInputWarning, UserError
from macl.modalities.image_text.data import load_pairs, open_side
from macl.modalities.image_text.pairs import (
    PairBatch,
    PairDataset,
    PairViews,
    caption_groups,
    draw_captions,
)
from macl.modalities.image_text.sections import PairDataConfig, PairViewsConfig, find_table
from macl.modalities.images.decode import ImageBatch
from small_pairs import COLORS, color_pairs, picture, write_table


def test_a_table_and_its_folder_give_the_same_pairs(tmp_path: Path) -> None:
    table = color_pairs(tmp_path)
    for path in (table, tmp_path):
        train = load_pairs(PairDataConfig(path=path), "train")
        test = load_pairs(PairDataConfig(path=path), "test")
        assert (len(train), len(test)) == (30, 10)
        assert test.names[0] == "images/red3.png"
        assert test.captions[0] == ("a red square",)
        assert test[0][0].shape == (3, 12, 12)
        assert set(test.classes) == set(COLORS)


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet"])
def test_other_formats(tmp_path: Path, suffix: str) -> None:
    for number in range(3):
        picture(tmp_path / f"{number}.png", "red", number)
    rows = [{"image": f"{n}.png", "text": [f"caption {n}", "red"]} for n in range(3)]
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".tsv":
        path.write_text("image\ttext\n" + "".join(f"{n}.png\tcaption {n}\n" for n in range(3)))
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    pairs = load_pairs(PairDataConfig(path=path, holdout=0), "train")
    assert pairs.captions[1][0] == "caption 1"
    assert len(pairs.captions[1]) == (1 if suffix == ".tsv" else 2)


def test_rows_of_one_file_are_captions_of_one_picture(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"{name}.png", "red", 0)
    rows = [["a.png", "one"], ["b.png", "two"], ["a.png", "three"], ["a.png", "one"]]
    table = write_table(tmp_path / "t.csv", ["file", "caption"], rows)
    pairs = load_pairs(PairDataConfig(path=table, holdout=0), "train")
    assert list(pairs.captions) == [("one", "three"), ("two",)]
    batch = pairs.collate([pairs[0], pairs[1]])
    torch.manual_seed(0)
    drawn = [draw_captions(batch) for _ in range(200)]
    assert {first for first, _ in drawn} == {"one", "three"}
    assert 60 < sum(first == "one" for first, _ in drawn) < 140
    torch.manual_seed(0)
    assert [draw_captions(batch) for _ in range(200)] == drawn


def test_groups_join_equal_captions_and_equal_concepts() -> None:
    captions = [("a", "b"), ("c",), ("b",), ("d",), ("e",)]
    groups = caption_groups(captions, ["1", "2", "3", "2", "5"]).tolist()
    assert groups[0] == groups[2]
    assert groups[1] == groups[3]
    assert len(set(groups)) == 3
    # The number does not depend on the other pictures of the batch or the process.
    assert caption_groups(captions[3:], ["2", "5"]).tolist() == groups[3:]


def test_a_concept_is_never_in_train_and_test(tmp_path: Path) -> None:
    rows = [row.split(",")[:3] for row in color_pairs(tmp_path).read_text().splitlines()[1:]]
    table = write_table(tmp_path / "plain.csv", ["file", "caption", "concept"], rows)
    config = PairDataConfig(path=table, holdout=0.3)
    train, test = load_pairs(config, "train"), load_pairs(config, "test")
    assert len(test) == 12
    assert not set(train.groups.tolist()) & set(test.groups.tolist())
    with pytest.raises(UserError, match="no validation split"):
        load_pairs(config, "validation")


def test_any_column_can_divide_the_data(tmp_path: Path) -> None:
    config = PairDataConfig(
        path=color_pairs(tmp_path),
        split="concept",
        train_split=("red", "blue"),
        test_split=("green",),
    )
    assert set(load_pairs(config, "train").classes) == {"red", "blue"}
    assert set(load_pairs(config, "test").classes) == {"green"}
    with pytest.raises(UserError, match="no pair whose split is validation"):
        load_pairs(config, "validation")


def test_broken_rows_are_counted_and_listed(tmp_path: Path) -> None:
    rows = [row.split(",")[:2] for row in color_pairs(tmp_path).read_text().splitlines()[1:]]
    rows[3][1] = "  "
    rows[5][0] = "images/missing.png"
    (tmp_path / rows[7][0]).write_bytes(b"no picture")
    table = write_table(tmp_path / "broken.csv", ["file", "caption"], rows)
    with pytest.raises(UserError, match=r"3 of 40 pairs cannot be used:\n.*red3.png has no cap"):
        load_pairs(PairDataConfig(path=table, holdout=0), "train")
    with pytest.warns(SkippedInputWarning, match="3 of 40 pairs"):
        pairs = load_pairs(PairDataConfig(path=table, holdout=0, on_error="skip"), "train")
    assert len(pairs) == len(pairs.captions) == 37
    place = list(pairs.names).index("images/blue3.png")
    assert pairs.captions[place] == ("a blue square",)


def test_mistakes_in_the_table_are_explained(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", ["picture", "caption"], [["a", "b"]])
    with pytest.raises(UserError, match=r"set data\.image to one of picture, caption"):
        load_pairs(PairDataConfig(path=table), "train")
    with pytest.raises(UserError, match=r"has no column 'pictures'.*Did you mean 'picture'"):
        load_pairs(PairDataConfig(path=table, image="pictures"), "train")
    (tmp_path / "latin.csv").write_bytes("file,caption\na.png,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.csv.*utf-8"):
        load_pairs(PairDataConfig(path=tmp_path / "latin.csv"), "train")
    with pytest.raises(UserError, match="does not exist"):
        load_pairs(PairDataConfig(path=tmp_path / "none"), "train")
    write_table(tmp_path / "u.csv", ["x"], [])
    with pytest.raises(UserError, match="name one"):
        find_table(tmp_path)


def test_either_side_is_opened(tmp_path: Path) -> None:
    table = color_pairs(tmp_path)
    config = PairDataConfig()
    assert len(open_side(config, table)) == 40
    assert len(open_side(PairDataConfig(side="text"), table)) == 10
    assert len(open_side(config, tmp_path / "images")) == 40
    assert len(open_side(config, tmp_path / "images" / "red0.png")) == 1
    lines = tmp_path / "lines.txt"
    lines.write_text("red\nblue\n")
    assert list(open_side(config, lines).names) == ["red", "blue"]
    with pytest.raises(UserError, match="holds texts"):
        open_side(PairDataConfig(side="image"), lines)


def test_views_are_a_picture_and_tokens_and_plain_takes_either_side(tmp_path: Path) -> None:
    pairs = load_pairs(PairDataConfig(path=color_pairs(tmp_path)), "test")
    towers = SimpleNamespace(text=_Letters(), captions=None)
    views = PairViews(PairViewsConfig(), towers)  # type: ignore[arg-type]
    batch = pairs.collate([pairs[i] for i in range(3)])
    picture, tokens = views(batch)
    assert picture.shape == (3, 3, 224, 224)
    assert tokens["input_ids"].shape[0] == 3
    texts = pairs.texts()
    plain = views.plain(texts.collate([texts[0], texts[1]]))
    assert isinstance(plain, dict)
    assert torch.equal(views.plain(batch), views.plain(batch.images))  # type: ignore[arg-type]
    assert isinstance(batch, PairBatch)
    assert isinstance(batch.images, ImageBatch)
    assert views.groups(batch).tolist() == batch.groups.tolist()


def test_matches_follow_captions_and_concepts() -> None:
    images = load_pairs(PairDataConfig(), "test").images.select(torch.arange(3))  # type: ignore[attr-defined]
    pairs = PairDataset(images, [("a", "b"), ("b",), ("c",)], None)
    assert pairs.texts().names == ["a", "b", "c"]
    assert pairs.matches().tolist() == [[0, 0], [0, 1], [1, 1], [2, 2]]
    grouped = PairDataset(images, [("a", "b"), ("b",), ("c",)], ["x", "y", "x"])
    expected = [[0, 0], [0, 1], [0, 2], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert grouped.matches().tolist() == expected


class _Letters:
    """A tokenizer by letters."""

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, torch.Tensor]:
        width = max(map(len, texts))
        ids = [[ord(letter) for letter in text.ljust(width)][:max_length] for text in texts]
        return {"input_ids": torch.tensor(ids)}
