from __future__ import annotations

import gc
import gzip
import io
import json
import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import ValidationError

from macl.core.errors import UserError
from macl.modalities.text.data import (
    TextBatch,
    TextDataConfig,
    TextDataset,
    batch_groups,
    duplicate_groups,
    load_for_evaluation,
    load_text,
    load_topics,
    open_text,
    read_text,
    split_sentences,
)
from macl.modalities.text.store import index_lines, spill

ROWS = [
    {"text": "a cat, asleep", "same": "a sleeping cat", "other": "a dog", "kind": "animal"},
    {"text": "rain\nfalls", "same": "it rains", "other": "it is dry", "kind": "weather"},
    {"text": "schön ☂", "same": "nice", "other": "ugly", "kind": "weather"},
]


def write_table(path: Path, rows: list[dict[str, str | None]]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    else:
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
            )
            writer.writeheader()
            writer.writerows(rows)
    return path


def load(path: Path, **settings: object) -> TextDataset:
    return load_text(TextDataConfig(path=str(path), **settings), "train")


def test_lines_of_a_txt_are_sentences_and_empty_ones_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("\ufeff first \r\n\n \t \nsecond ☂\r\nlast".encode())
    dataset = load(path)
    assert list(dataset.names) == ["first", "second ☂", "last"]
    assert dataset.names[-1] == "last"
    assert dataset.names[1:] == ["second ☂", "last"]
    assert "corpus.txt: 2 empty lines or incomplete rows skipped" in caplog.text
    assert dataset.labels is None
    assert dataset.collate([dataset[0], dataset[2]]) == TextBatch(["first", "last"], None, None)


@given(st.lists(st.text(st.characters(blacklist_characters="\n\r", codec="utf-8"))))
def test_index_agrees_with_reading_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    path.write_bytes("\n".join(lines).encode())
    whole = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [line.decode().strip() for line in whole if line.decode().strip()]
    assert list(index_lines(path, "utf-8")[0][0]) == expected


def test_a_store_holds_offsets_and_not_the_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(("a long sentence " * 50 + "\n") * 1000)
    (store,), _, _ = index_lines(path, "utf-8")
    assert len(pickle.dumps(store)) < path.stat().st_size / 20
    assert pickle.loads(pickle.dumps(store))[999] == store[999] == ("a long sentence " * 50).strip()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_tables_give_sentences_pairs_triplets_and_labels(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_table(tmp_path / f"t{suffix}", [*ROWS, ROWS[0] | {"text": " "}])
    assert list(load(path).names) == [row["text"] for row in ROWS]
    dataset = load(path, positive="same", negative="other", label="kind")
    assert dataset[1] == ("rain\nfalls", "it rains", "it is dry")
    batch = dataset.collate([dataset[i] for i in range(3)])
    assert batch == TextBatch(*([row[key] for row in ROWS] for key in ("text", "same", "other")))
    assert dataset.classes == ["animal", "weather"]
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [0, 1, 1]
    assert f"t{suffix}: 1 empty lines or incomplete rows skipped" in caplog.text
    assert len(list(dataset.sentences())) == 9


def test_rows_without_a_value_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [*ROWS, ROWS[0] | {"same": None}, ROWS[0] | {"kind": None}]
    dataset = load(write_table(tmp_path / "t.jsonl", rows), positive="same", label="kind")
    assert len(dataset) == 3
    assert "t.jsonl: 2 empty lines or incomplete rows skipped" in caplog.text


def test_the_temporary_file_of_a_table_goes_with_it() -> None:
    columns, _, _ = spill([("a", "b"), ("c", "d")], 2)
    path = columns[0].read.path
    del columns[1]
    gc.collect()
    assert columns[0][1] == "c"
    del columns
    gc.collect()
    assert not path.exists()


def test_topics_are_labeled_split_once_and_repeatable() -> None:
    train, test = (load_text(TextDataConfig(), split) for split in ("train", "test"))
    assert len(train) > 3 * len(test) > 500
    assert train.classes == test.classes
    assert not set(train.names) & set(test.names)
    assert len(set(train.names)) == len(train)
    assert load_topics("train")[0] == list(train.names)


def test_sentences_are_split_without_titles() -> None:
    text = (
        "Title of this\n*************\n\nOne two three four five six. Seven eight nine ten\n"
        "eleven twelve.\n\nx = 1"
    )
    assert list(split_sentences(text)) == [
        "One two three four five six.",
        "Seven eight nine ten eleven twelve.",
    ]


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("none.txt", None, {}, "not a file"),
        ("empty.txt", b"\n \n", {}, "no sentences"),
        ("latin.txt", "gut\nschön".encode("latin-1"), {}, "line 2 is not utf-8.*data.encoding"),
        ("latin.csv", "text\nschön".encode("latin-1"), {}, "not utf-8"),
        ("column.csv", b"texte,kind\na,b\n", {}, "no column 'text'. Did you mean 'texte'"),
        ("column.jsonl", b'{"txt": "a", "n": 1}\n', {}, "no column 'text'"),
        ("blank.jsonl", b'\n{"txt": "a", "n": 1}\n', {}, "no column 'text'"),
        ("broken.jsonl", b'{"text": "a"}\n{"text"\n', {}, "line 2 is not JSON"),
        ("list.jsonl", b"[1]\n", {}, "not a JSON object"),
        ("broken.parquet", b"PAR1", {}, "not a readable parquet"),
        ("file.doc", b"text", {}, r"cannot read \.doc"),
        ("pairs.txt", b"a\nb\n", {"positive": "same"}, "lines, not columns"),
        ("nothing.csv", b"text\n", {}, "no sentences"),
    ],
)
def test_bad_files_say_what_is_wrong(
    tmp_path: Path, name: str, content: bytes | None, settings: dict[str, str], message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load(tmp_path / name, **settings)


def test_encoding_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("schön\n".encode("latin-1"))
    assert load(tmp_path / "x.txt", encoding="latin-1")[0] == ("schön",)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoding": "utf-16"},
        {"encoding": "klingon"},
        {"encoding": "base64"},
        {"negative": "other"},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TextDataConfig(**settings)


def test_own_files_need_a_test_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\n")
    config = TextDataConfig(path=str(path))
    with pytest.raises(UserError, match=r"data\.test_path"):
        load_text(config, "test")
    config = TextDataConfig(path="elsewhere.txt", test_path=str(path))
    assert list(load_text(config, "test").names) == ["a"]


def test_opening_a_table_takes_its_sentences_alone(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", ROWS)
    dataset = open_text(TextDataConfig(column="same", positive="text", label="kind"), path)
    assert dataset[0] == ("a sleeping cat",)


@given(st.lists(st.tuples(st.sampled_from("abcdef "), st.sampled_from("uvwxyz")), min_size=1))
def test_duplicate_groups_join_what_shares_a_sentence(pairs: list[tuple[str, str]]) -> None:
    columns = [list(column) for column in zip(*pairs, strict=True)]
    columns[0] = [text + " " * (i % 2) for i, text in enumerate(columns[0])]
    groups = list(range(len(pairs)))
    for _ in pairs:  # spread the smallest number until nothing changes
        for i, p in enumerate(pairs):
            for j, q in enumerate(pairs):
                if p[0].strip() == q[0].strip() or p[1] == q[1]:
                    groups[i] = groups[j] = min(groups[i], groups[j])
    found = duplicate_groups(*columns)
    expected = torch.tensor(groups)
    assert torch.equal(found[:, None] == found, expected[:, None] == expected)


def test_duplicate_groups_of_sentences() -> None:
    a, b, blank_a, big_a = duplicate_groups(["a", "b", " a", "A"]).tolist()
    assert a == blank_a
    assert len({a, b, big_a}) == 3
    dataset = TextDataset([["a", "b", "a"]])
    groups = batch_groups(dataset.collate([dataset[i] for i in range(3)])).tolist()
    # The same number in every batch and every process: it is a hash of the sentence.
    assert groups == [a, b, a]


def test_hard_negatives_belong_to_the_sentences_that_they_repeat() -> None:
    batch = TextBatch(["a", "b"], ["c", "d"], [" d", "e"])
    own, theirs = batch_groups(batch).split(2)
    assert theirs[0] == own[1]  # the positive of b, so none of b's negatives
    assert theirs[1] not in own


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_one_column_without_a_header_keeps_its_first_sentence(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text("the first sentence\nthe second\n")
    with pytest.warns(UserWarning, match=r"first line is a sentence.*data\.header=true"):
        assert list(read_text(path, TextDataConfig()).names) == ["the first sentence", "the second"]
    assert list(read_text(path, TextDataConfig(header=True)).names) == ["the second"]
    path.write_text("text\nthe first sentence\n")
    assert list(read_text(path, TextDataConfig()).names) == ["the first sentence"]
    assert read_text(path, TextDataConfig(header=False)).names[0] == "text"
    path.write_text("word\nthe first sentence\n")
    assert list(read_text(path, TextDataConfig()).names) == ["the first sentence"]


def test_columns_without_a_header_go_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("7,a cat\n8,a dog\n")
    config = TextDataConfig(header=False, column="2")
    assert list(read_text(tmp_path / "a.csv", config).names) == ["a cat", "a dog"]


def test_gzipped_tables_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("text\na cat\n")
    assert list(read_text(tmp_path / "a.csv.gz", TextDataConfig()).names) == ["a cat"]


def test_sentences_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a cat\n\na dog\n"))
    assert list(open_text(TextDataConfig(), Path("-")).names) == ["a cat", "a dog"]


def test_a_limit_chooses_the_same_sentences_with_their_columns(tmp_path: Path) -> None:
    rows = [{"text": f"s{i}", "same": f"p{i}", "kind": str(i % 2)} for i in range(30)]
    path = write_table(tmp_path / "a.csv", rows)
    config = TextDataConfig(path=str(path), positive="same", label="kind", limit=9)
    some = load_text(config, "train")
    assert len(some) == 9
    numbers = [int(name[1:]) for name in some.names]
    assert numbers == sorted(numbers)
    assert [some[i] for i in range(9)] == [(f"s{n}", f"p{n}") for n in numbers]
    assert some.labels is not None
    assert some.labels.tolist() == [n % 2 for n in numbers]
    assert list(load_text(config, "train").names) == list(some.names)
    assert len(open_text(TextDataConfig(limit=4), path)) == 4
    assert len(load_text(TextDataConfig(limit=5), "test")) == 5


def test_labeled_sentences_without_a_test_split_are_divided(tmp_path: Path) -> None:
    rows = [{"text": f"s{i}", "kind": str(i % 2)} for i in range(30)]
    path = write_table(tmp_path / "a.csv", rows)
    config = TextDataConfig(path=str(path), label="kind")
    with pytest.warns(UserWarning, match=r"6 of the 30 .*without their labels.*data\.holdout"):
        train, test, split = load_for_evaluation(config)
    assert (len(train), len(test), split) == (24, 6, "holdout")
    assert not {*train.names} & {*test.names}
    apart = config.model_copy(update={"holdout": 0.2})
    train, test, split = load_for_evaluation(apart)
    assert (len(train), len(test), split) == (24, 6, "test")
    assert {*train.names} == {*load_text(apart, "train").names}
    with pytest.raises(UserError, match=r"data\.test_path.*data\.holdout"):
        load_text(config, "test")
    with pytest.raises(UserError, match=r"no classes.*data\.label"):
        load_for_evaluation(TextDataConfig(path=str(path)))


def test_paths_are_stored_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert TextDataConfig(path="a #1 set.txt").path == tmp_path / "a #1 set.txt"
