"""Indexes of vectors: every engine against the exact search, conditions, batches, mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import macl
import recipe_texts
from macl.core.errors import UserError
from macl.runs.engines import unit
from macl.runs.engines.exact import Exact
from macl.runs.index import Index
from macl.runs.stored import Stored, parse_condition
from macl.runs.vectors import table_of, write_parquet
from macl.training.fit import train
from tiny import HERE, forked_macl

COUNT, WIDTH = 12_000, 16


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clusters in three parts, with a label and a number beside the name."""
    folder = tmp_path_factory.mktemp("index") / "vectors"
    chance = np.random.default_rng(0)
    centers = chance.normal(size=(50, WIDTH))
    values = centers[chance.integers(50, size=COUNT)] + 0.5 * chance.normal(size=(COUNT, WIDTH))
    for number, rows in enumerate(np.array_split(np.arange(COUNT), 3)):
        columns = {
            "name": [f"item {row}" for row in rows],
            "row": (rows + 1).tolist(),
            "label": [f"it's {row % 4}" for row in rows],
        }
        file = folder / f"part-{number:05d}.parquet"
        write_parquet(file, table_of(values[rows].astype(np.float32), columns, "encoder"))
    return folder


def slow(stored: Stored, query: np.ndarray, k: int, allowed: Any) -> list[int]:
    """A loop in float64."""
    keys = stored.numbers(np.arange(len(stored))).astype(np.float64)
    scores = []
    for row in range(len(keys)):
        if allowed(row):
            length = np.sqrt((keys[row] ** 2).sum() * (query.astype(np.float64) ** 2).sum())
            scores.append((-float((keys[row] * query).sum()) / length, row))
    return [row for _, row in sorted(scores)[:k]]


CONDITIONS = [("label", "in", ["it's 1", "it's 2"]), ("row", "<", 9000)]


def meets(row: int) -> bool:
    return row % 4 in (1, 2) and row + 1 < 9000


def test_exact_equals_a_loop_with_and_without_conditions(vectors: Path) -> None:
    stored = Stored.open(vectors)
    queries = stored.numbers(np.array([5, 7000, 11_999]))
    found, places = Exact(stored).nearest(queries, 7)
    assert places.tolist() == [slow(stored, query, 7, lambda row: True) for query in queries]
    np.testing.assert_allclose(found[:, 0], 1, atol=1e-6)
    _, places = Exact(stored).nearest(queries, 7, CONDITIONS)
    assert places.tolist() == [slow(stored, query, 7, meets) for query in queries]
    _, few = Exact(stored).nearest(queries, 7, [("row", "<=", 2)])
    assert sorted(few[0]) == [0, 1]


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("faiss", None), ("faiss", "HNSW16"), ("lancedb", None)],
)
def test_every_engine_is_near_the_exact_search(
    vectors: Path, tmp_path: Path, engine: str, kind: str | None
) -> None:
    pytest.importorskip(engine)
    made = macl.index(vectors, tmp_path / "v.index", engine=engine, kind=kind)
    built = made.built
    assert built is not None
    assert (built.engine, built.count, built.encoder) == (engine, COUNT, "encoder")
    assert built.recall >= 0.95
    assert built.queries_per_second > 0
    stored = Stored.open(vectors)
    queries = stored.numbers(np.arange(5, 12_000, 1500))
    opened = Index.open(tmp_path / "v.index")
    for where, allowed in (((), lambda row: True), (CONDITIONS, meets)):
        found = opened.nearest(torch.from_numpy(queries), 5, where)
        shares = []
        for query, matches in zip(queries, found, strict=True):
            rows = [match.row for match in matches]
            shares.append(len({*rows} & {*slow(stored, query, 5, allowed)}) / 5)
            assert all(map(allowed, rows))
            assert matches[0].name == f"item {rows[0]}"
            assert matches[0].score >= matches[-1].score
        assert np.mean(shares) >= 0.85
    # A single vector is a query; fewer rows than asked for are all there are.
    some = made.query(torch.from_numpy(queries[0]), k=4, where=[("row", "<", 3)])
    assert {match.row for match in some} == {0, 1}


def test_a_wider_search_is_chosen_for_the_wanted_recall(vectors: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    kind = "HNSW4"
    wide = macl.index(vectors, tmp_path / "wide", kind=kind, recall=1.0).built
    narrow = macl.index(vectors, tmp_path / "narrow", kind=kind, recall=0.01).built
    assert wide is not None
    assert narrow is not None
    assert wide.settings["breadth"] > narrow.settings["breadth"] == 16
    assert narrow.recall < wide.recall


def test_mistakes_are_named(vectors: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    query = torch.zeros(1, WIDTH)
    with pytest.raises(UserError, match="color: there is no such column"):
        Index.open(vectors).nearest(query, 1, [("color", "==", "red")])
    with pytest.raises(UserError, match="row<many"):
        Index.open(vectors).nearest(query, 1, [("row", "<", "many")])
    with pytest.raises(UserError, match="made by another encoder"):
        Index.open(vectors).nearest(torch.zeros(1, 3), 1)
    with pytest.raises(UserError, match="open the index with its run"):
        macl.Index.open(vectors).query("a text")
    with pytest.raises(UserError, match="no such engine"):
        macl.index(vectors, tmp_path / "i", engine="magic")
    with pytest.raises(UserError, match="faiss cannot build that"):
        macl.index(vectors, tmp_path / "i", kind="Nonsense7")
    with pytest.raises(UserError, match="is there already"):
        macl.index(vectors, tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "index.json").write_text(json.dumps({"engine": 3}))
    with pytest.raises(UserError, match="cannot be read as an index"):
        Index.open(tmp_path / "broken")
    other = tmp_path / "part.parquet"
    made = table_of(np.zeros((1, WIDTH), np.float32), {"name": ["a"]}, "another")
    write_parquet(other, made)
    with pytest.raises(UserError, match="different encoders"):
        Stored("both", [*vectors.iterdir(), other])
    pq.write_table(pa.table({"a": [1]}), tmp_path / "no.parquet")
    with pytest.raises(UserError, match="no column `name`"):
        Stored.open(tmp_path / "no.parquet")


def test_an_index_whose_data_lie_elsewhere_is_read_there_if_asked(
    vectors: Path, tmp_path: Path
) -> None:
    """A folder from elsewhere could name any place, also of the network."""
    pytest.importorskip("lancedb")
    place = str(tmp_path / "elsewhere")
    macl.index(vectors, tmp_path / "v.index", engine="lancedb", store=place)
    query = torch.from_numpy(Stored.open(vectors).numbers(np.array([5]))[0])
    for store in (None, "another"):
        with pytest.raises(UserError, match=r"has its data in .*elsewhere: give `store=`"):
            macl.Index.open(tmp_path / "v.index", store=store)
    opened = macl.Index.open(tmp_path / "v.index", store=place)
    assert opened.query(query, k=1)[0].row == 5


def test_conditions_are_parsed() -> None:
    assert parse_condition("label=cat") == ("label", "==", "cat")
    assert parse_condition("label = cat, dog") == ("label", "in", ["cat", "dog"])
    assert parse_condition("row >= 3") == ("row", ">=", "3")
    assert parse_condition("name!=a=b") == ("name", "!=", "a=b")
    with pytest.raises(UserError, match="write column=value"):
        parse_condition("just words")


def test_unit_rows() -> None:
    rows = unit(np.array([[3.0, 4.0], [0, 0], [np.nan, 1]], np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [0, 1]])


def test_a_file_of_sentences_is_a_batch_of_queries(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = recipe_texts.load("topics", ["epochs=0", "data.limit=100", "encoder.width=16"])
    run = train(small, tmp_path / "run", compute=HERE)
    sentences = ["a list of numbers", "open a file", "send a message", "=1+1"]
    macl.embed_parts(run, sentences, tmp_path / "v", part_items=2)
    index = macl.Index.open(tmp_path / "v", run)
    assert index.query("open a file", k=1)[0].name == "open a file"
    found = index.query_all(sentences[1:3], k=2)
    assert [(query, matches[0].name) for query, matches in found] == [
        ("open a file", "open a file"),
        ("send a message", "send a message"),
    ]
    (tmp_path / "queries.txt").write_text("\n".join(sentences[1:]))
    given = ["search", run.folder, tmp_path / "queries.txt", "--in", tmp_path / "v"]
    done = forked_macl(*given, "-k", "2", "--where", "row<4", "-o", tmp_path / "found.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == [
        *["open a file"] * 2,
        *["send a message"] * 2,
        *["'=1+1"] * 2,
    ]
    assert rows[0]["name"] == "open a file"
    assert all(row["name"] != "'=1+1" for row in rows)
    pytest.importorskip("faiss")
    done = forked_macl("index", tmp_path / "v", "-o", tmp_path / "v.index")
    assert "recall@10 1.000" in done.stderr
    done = forked_macl("search", run.folder, "open a file", "--in", tmp_path / "v.index")
    assert "open a file" in done.stdout
    other = train(small.model_copy(update={"seed": 1}), tmp_path / "other", compute=HERE)
    with pytest.raises(UserError, match="another encoder"):
        macl.search(other, "open a file", tmp_path / "v.index")


def test_later_searches_read_no_files_and_find_the_same(
    vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = np.random.default_rng(1).normal(size=(3, WIDTH)).astype(np.float32)
    read, blocks = [], Stored.blocks

    def counted(self: Stored, *given: Any) -> Any:
        read.append(given)
        return blocks(self, *given)

    monkeypatch.setattr(Stored, "blocks", counted)
    index = Index.open(vectors)
    answers = [index.engine.nearest(queries, 10) for _ in range(4)]
    assert len(read) == 2  # the first search, and the second, which keeps them
    for scores, positions in answers[1:]:
        np.testing.assert_array_equal(scores, answers[0][0])
        np.testing.assert_array_equal(positions, answers[0][1])
    for where in [[condition] for condition in CONDITIONS]:
        expected = Exact(Stored.open(vectors)).nearest(queries, 10, where)
        np.testing.assert_array_equal(index.engine.nearest(queries, 10, where)[1], expected[1])
    monkeypatch.setattr("macl.runs.engines.exact.KEPT", 0)
    small, before = Index.open(vectors), len(read)
    for _ in range(3):
        small.engine.nearest(queries, 10)
    assert len(read) == before + 3
