"""Mined negatives and duplicates against a slow loop, and through the command to training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import macl
from macl.api import resolve
from macl.core.errors import UserError
from macl.core.mining import Rules, Space, hard_negatives, near_duplicates
from macl.core.outputs import MINED_SUFFIXES, check_file
from macl.modalities.tables import read_table
from macl.runs import Run
from shared import trained
from tiny import forked_macl, recipe

Q, C = 13, 17


def space(seed: int, dim: int = 4) -> Space:
    generator = torch.Generator().manual_seed(seed)
    anchors = F.normalize(torch.randn(Q, dim, generator=generator, dtype=torch.float64), dim=1)
    candidates = F.normalize(torch.randn(C, dim, generator=generator, dtype=torch.float64), dim=1)
    return Space(anchors, candidates, torch.randint(C, (Q,), generator=generator))


def by_loop(
    s: Space,
    groups: tuple[torch.Tensor, torch.Tensor],
    rules: Rules,
    labels: tuple[torch.Tensor, torch.Tensor] | None,
    guide: Space | None,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], float]:
    """One anchor and one candidate at a time; the pairs, the false ones and their share."""

    def limit(of: Space, i: int) -> float:
        positive = float(of.anchors[i] @ of.candidates[of.positives[i]])
        margin = rules.margin or 0.0
        return positive - (abs(positive) * margin if rules.relative else margin)

    def false(i: int, j: int) -> bool:
        same = labels is not None and bool(labels[0][i] == labels[1][j])
        if guide is not None:
            same |= float(guide.anchors[i] @ guide.candidates[j]) > limit(guide, i)
        return same

    chosen, wrong, looked = [], [], 0
    first, last = rules.ranks
    for i in range(Q):
        order = sorted(range(C), key=lambda j: -float(s.anchors[i] @ s.candidates[j]))
        order = [j for j in order if groups[0][i] != groups[1][j]]
        top = order[first - 1 : last][: rules.k]
        looked += len(top)
        wrong += [(i, j) for j in top if false(i, j)]
        if labels is not None:
            order = [j for j in order if labels[0][i] != labels[1][j]]
        fits = [
            j
            for j in order[first - 1 : last]
            if not false(i, j)
            and (rules.margin is None or float(s.anchors[i] @ s.candidates[j]) <= limit(s, i))
        ]
        chosen += [(i, j) for j in fits[: rules.k]]
    return chosen, wrong, len(wrong) / looked


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(3, (1, 5)),
        Rules(2, (3, 100)),
        Rules(2, (1, 17), 0.1),
        Rules(2, (1, 17), 0.2, relative=True),
    ],
)
@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("guided", [False, True])
def test_negatives_are_those_of_a_loop(rules: Rules, labeled: bool, guided: bool) -> None:
    s, guide = space(0), space(1) if guided else None
    if guide is not None:
        guide = guide._replace(positives=s.positives)
    generator = torch.Generator().manual_seed(2)
    groups = torch.arange(Q), torch.randint(Q + 5, (C,), generator=generator)
    labels = None
    if labeled:
        labels = tuple(torch.randint(4, (n,), generator=generator) for n in (Q, C))
    expected, wrong, share = by_loop(s, groups, rules, labels, guide)
    judges = {"labels": labels, "guide": guide, "most": 3 * C}
    found = hard_negatives(s, groups, rules, **judges)
    assert list(zip(found.rows.tolist(), found.columns.tolist(), strict=True)) == expected
    false = hard_negatives(s, groups, rules, false_only=True, **judges)
    assert list(zip(false.rows.tolist(), false.columns.tolist(), strict=True)) == wrong
    products = (s.anchors @ s.candidates.T)[found.rows, found.columns]
    torch.testing.assert_close(found.scores, products)
    if labeled or guided:
        assert found.false_share == pytest.approx(share)
    else:
        assert found.false_share is None


def test_duplicates_are_those_of_a_loop() -> None:
    vectors = space(3, dim=2).candidates
    found = near_duplicates(vectors, 0.9, most=2 * C)
    expected = {
        (i, j) for i in range(C) for j in range(i + 1, C) if float(vectors[i] @ vectors[j]) >= 0.9
    }
    assert expected
    assert set(zip(found.rows.tolist(), found.columns.tolist(), strict=True)) == expected


QUESTIONS = [
    ("How do I open a file?", "Call open with its path."),
    ("How do I read a file?", "Call read on the open file."),
    ("How do I open a file?", "Use the function open."),
    ("What is a list?", "A list is a sequence that can change."),
    ("What is a tuple?", "A tuple is a sequence that cannot change."),
    ("What is a set?", "A set holds each value once."),
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("query", "answer"), *QUESTIONS])
    return file


TEXT = {"data.column": "query", "data.positive": "answer"}


def text_run() -> Run:
    small = {"encoder.width": 16, "encoder.layers": 1, "encoder.vocabulary": 200, "data.limit": 64}
    return trained(resolve("topics", overrides=small, epochs=1))


def test_triplets_of_texts(table: Path, tmp_path: Path) -> None:
    run = text_run()
    found = macl.mine(run, table, k=2, overrides=TEXT)
    rows = list(zip(*found.columns.values(), strict=True))
    assert list(found.columns) == ["anchor", "positive", "negative"]
    answers = {answer for _, answer in QUESTIONS}
    for anchor, positive, negative in rows:
        assert (anchor, positive) in QUESTIONS
        assert negative in answers - {a for q, a in QUESTIONS if q == anchor}
    assert len(rows) == len(found) == 12
    for suffix in (".jsonl", ".csv", ".parquet"):
        written = found.save(tmp_path / f"mined{suffix}")
        read = read_table(written, ["anchor", "positive", "negative"])
        assert [tuple(row) for row in read] == rows
    with pytest.raises(UserError, match="already there"):
        found.save(tmp_path / "mined.csv")
    guided = macl.mine(run, table, overrides=TEXT, guide=run, margin=0.0)
    assert guided.false_negative_share is not None
    false = macl.mine(run, table, overrides=TEXT, guide=run, k=2, false_negatives=True)
    assert list(false.columns) == ["anchor", "positive", "false_negative"]
    share = false.false_negative_share
    assert share is not None
    assert 0 < len(false) == round(share * 2 * len(QUESTIONS))
    same = macl.mine(run, table, duplicates=True, overrides={"data.column": "query"})
    assert ("How do I open a file?",) * 2 in list(zip(*same.columns.values(), strict=True))


def test_what_cannot_be_mined_is_said_first(table: Path) -> None:
    run = text_run()
    with pytest.raises(UserError, match=r"data\.positive"):
        macl.mine(run, table, margin=0.1, overrides={"data.column": "query"})
    with pytest.raises(UserError, match="give `guide=`, or name the labels"):
        macl.mine(run, table, overrides=TEXT, false_negatives=True)
    with pytest.raises(UserError, match="ranks="):
        macl.mine(run, table, ranks=(5, 2))
    with pytest.raises(UserError, match=r"ends? in \.parquet"):
        check_file(Path("mined.txt"), MINED_SUFFIXES, False)


def test_pictures_have_duplicates_too(tmp_path: Path) -> None:
    run = trained(recipe("epochs=1"))
    from PIL import Image

    for name in ("a", "b", "c"):
        shade = 255 if name == "c" else 40
        picture = Image.new("L", (8, 8), shade)
        picture.putpixel((1, 2), 255 - shade)
        picture.save(tmp_path / f"{name}.png")
    found = macl.mine(run, tmp_path, duplicates=0.999)
    first, second = found.columns["first"], found.columns["second"]
    assert (Path(first[0]).name, Path(second[0]).name) == ("a.png", "b.png")
    assert found.scores[0] == pytest.approx(1, abs=1e-5)


def test_molecules_have_duplicates_too(tmp_path: Path) -> None:
    """However a molecule is written; and one that is written is a query of a search."""
    pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
    small = {"encoder.hidden": 8, "data.limit": 50, "batch_size": 16}
    run = trained(resolve("chembl", overrides=small, epochs=0))
    file = tmp_path / "molecules.smi"
    file.write_text("CCO ethanol\nc1ccccc1Cl chlorobenzene\nOCC alcohol\n")
    mined = macl.mine(run, file, duplicates=0.999)
    assert list(zip(*mined.columns.values(), strict=True)) == [("CCO", "OCC")]
    nearest, *_ = macl.search(run, "Clc1ccccc1", macl.embed(run, file), k=1)
    assert (nearest.row, nearest.score) == (1, pytest.approx(1, abs=1e-5))


def test_the_command(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "mined.jsonl"
    arguments = ("data.column=query", "data.positive=answer", "-o", out, "--ranks", "1", "3")
    done = forked_macl("mine", text_run().folder, table, *arguments)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 6
    assert set(rows[0]) == {"anchor", "positive", "negative"}
    again = forked_macl("mine", text_run().folder, table, "-o", out)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
