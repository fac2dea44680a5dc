"""Differences, intervals and verdicts are the same in every table and page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest

from macl.core.errors import UserError
from macl.experiments.compare import Cell
from macl.experiments.records import read_looks
from macl.experiments.rows import Row, correct, pool, tabulate
from macl.experiments.statistics import mean_std, paired_difference, pooled_difference
from macl.experiments.tables import (
    RowText,
    correction,
    differences,
    latex,
    markdown,
    results,
    write_tables,
)
from macl.paper.side_by_side import _gain
from macl.reporting.page import _compared


def row(loss: str, metric: str, values: list[float], base: list[float] | None = None) -> Row:
    difference = None if base is None else paired_difference(values, base)
    seeds = [*range(len(values))]
    kind: Literal["score", "training"] = "training" if metric == "alignment" else "score"
    return Row({"loss": loss}, metric, seeds, values, *mean_std(values), difference, kind)


LOW, HIGH = [50.0, 51.0, 50.5], [60.0, 61.0, 61.5]
ROWS = [
    row("nt-xent", "knn top1", LOW),
    row("nt-xent", "geometry uniformity", [-1.0, -1.1, -1.05]),
    row("nt-xent", "alignment", [0.5, 0.6, 0.55]),
    row("macl", "knn top1", HIGH, LOW),
    row("macl", "geometry uniformity", [-2.0, -2.2, -2.1], [-1.0, -1.1, -1.05]),
    row("macl", "alignment", [0.8, 0.9, 0.85], [0.5, 0.6, 0.55]),
]
ONE_SEED = [row("nt-xent", "knn top1", [50.0]), row("macl", "knn top1", [53.0], [50.0])]


def test_scores_have_verdicts_and_geometry_has_none() -> None:
    _, lines = differences(ROWS)
    assert [line[:2] for line in lines] == [["macl", "knn top1"], ["macl", "geometry uniformity"]]
    score, geometry = lines
    assert score[2:] == ["+10.33", "[+8.90, +11.77]", "1.88", "ahead"]
    assert geometry[2:] == ["-1.050", "[-1.174, -0.926]", "–", "–"]
    assert "behind" not in markdown(ROWS) + latex(ROWS)


def test_the_page_and_the_papers_table_say_the_same() -> None:
    shown = _compared(ROWS[3])
    texts = (shown["difference"], shown["interval"], shown["verdict"])
    assert texts == ("+10.33", "[+8.90, +11.77]", "ahead")
    assert _gain(ROWS[3]) == "+10.33 [+8.90, +11.77], ahead"
    assert _compared(ROWS[4])["verdict"] == ""
    assert _gain(ROWS[4]) == "-1.050 [-1.174, -0.926]"


def test_one_seed_has_no_interval_and_no_spread(tmp_path: Path) -> None:
    assert results(ONE_SEED)[1] == [["nt-xent", "50.00"], ["macl", "53.00"]]
    assert _gain(ONE_SEED[1]) == "+3.00, no difference shown with 1 seed"
    for text in (markdown(ONE_SEED), latex(ONE_SEED), str(_compared(ONE_SEED[1]))):
        assert "inf" not in text
        assert "no difference shown with 1 seed" in text


def test_every_file_has_difference_interval_and_verdict(tmp_path: Path) -> None:
    files = {file.name: file for file in write_tables(ROWS, tmp_path)}
    assert set(files) == {"table.parquet", "summary.parquet", "table.md", "table.tex"}
    summary = pd.read_parquet(files["summary.parquet"])
    (line,) = summary.query("loss == 'macl' and metric == 'knn top1'").to_dict("records")
    assert line["difference"] == pytest.approx(31 / 3)
    assert (line["low"], line["high"]) == pytest.approx((8.8991, 11.7676), abs=1e-4)
    assert (line["seeds"], line["verdict"]) == (3, "ahead")
    assert (
        "| macl | knn top1 | +10.33 | [+8.90, +11.77] | 1.88 | ahead |"
        in files["table.md"].read_text()
    )
    tex = files["table.tex"].read_text()
    assert r"macl & knn top1 & +10.33 & [+8.90, +11.77] & 1.88 & ahead \\" in tex
    assert r"95\% interval" in tex
    tidy = pd.read_parquet(files["table.parquet"])
    assert len(tidy) == 18


def test_seeds_keep_their_numbers(tmp_path: Path) -> None:
    late = Row({"loss": "macl"}, "knn top1", [1, 2], [5.0, 6.0], 5.5, 0.7, None)
    tidy = pd.read_parquet(write_tables([late], tmp_path)[0])
    assert tidy.seed.tolist() == [1, 2]


def test_names_survive_latex_and_markdown() -> None:
    odd = row("[a|b, c_d] & 5%", "knn top1", [1.0])
    assert "{}[a|b, c\\_d] \\& 5\\%" in latex([odd])
    assert r"[a\|b, c_d] & 5%" in markdown([odd])


def test_verdicts_are_corrected_for_the_number_of_comparisons(tmp_path: Path) -> None:
    """One comparison at p = 0.03 is a finding; the same beside nine others is none."""
    base = [50.0, 50.0, 50.0, 50.0]
    weak = [51.0, 52.0, 50.5, 51.5]  # p = 0.03
    alone = correct([row("nt-xent", "knn top1", base), row("macl", "knn top1", weak, base)])
    assert alone[1].difference is not None
    assert alone[1].difference.p == pytest.approx(0.0305, abs=1e-3)
    assert alone[1].difference.verdict == "ahead"
    assert "needs no correction" in correction(alone)
    noise = [row(f"loss {i}", "knn top1", [50.0, 51.0, 49.0, 50.1], base) for i in range(9)]
    among = correct([*alone, *noise])
    assert among[1].difference is not None
    assert among[1].difference.adjusted == pytest.approx(10 * alone[1].difference.p)
    assert among[1].difference.verdict == "no difference shown with 4 seeds"
    assert among[1].difference.detectable > alone[1].difference.detectable
    text = (write_tables(among, tmp_path)[2]).read_text()
    assert "corrected for 10 comparisons (Holm" in text
    assert "80% power" in text
    assert "paired t test, 5%/10" in text


def test_geometry_and_single_seeds_are_no_comparisons() -> None:
    rows = correct([*ROWS, *ONE_SEED])
    assert {each.difference.comparisons for each in rows if each.difference} == {1}
    assert correction(ONE_SEED) == ""


def grid(gains: dict[tuple[str, str], list[float]]) -> list[Row]:
    base = [50.0, 50.0]
    rows = []
    for batch in ("8", "64", "256"):
        rows.append(Row({"loss": "nt-xent", "batch": batch}, "knn top1", [0, 1], base, 50, 0, None))
        for (loss, size), gain in gains.items():
            if size == batch:
                values = [50 + each for each in gain]
                found = paired_difference(values, base)
                setting = {"loss": loss, "batch": batch}
                rows.append(Row(setting, "knn top1", [0, 1], values, *mean_std(values), found))
    return rows


def test_settings_are_pooled_over_the_other_keys() -> None:
    rows = grid(
        {
            ("dcl", "8"): [0.5, 1.5],
            ("dcl", "64"): [1.0, 3.0],
            ("dcl", "256"): [6.0, 6.0],
            ("hcl", "8"): [1.0, 1.0],
        }
    )
    ((place, only),) = pool(rows).items()  # of hcl there is one setting: nothing to pool
    assert (*place, only.settings) == ("dcl", "knn top1", 3)
    assert only == replace(
        pooled_difference([[0.5, 1.5], [1, 3], [6, 6]]),
        adjusted=only.p,
        equal_adjusted=only.equal,
    )
    text = markdown(rows)
    assert "| dcl | knn top1 | +3.00 | [-3.57, +9.57] | 3 | 6 |" in text
    assert "corrected for 1 pools (Holm)" in text
    assert "pooled" in latex(rows)
    assert not pool(ROWS)


def test_a_table_counts_the_looks(tmp_path: Path) -> None:
    few = [row("nt-xent", "knn top1", LOW[:2]), row("macl", "knn top1", HIGH[:2], LOW[:2])]
    page = write_tables(few, tmp_path)[2]
    assert "One look was taken." in page.read_text()
    write_tables(few, tmp_path)
    write_tables(ROWS, tmp_path)
    write_tables(ROWS, tmp_path)
    assert "2 looks were taken: with 2 and 3 seeds." in page.read_text()
    assert read_looks(tmp_path) == [2, 3]
    (tmp_path / "looks.json").write_text("{")
    with pytest.raises(UserError, match=r"looks\.json cannot be read"):
        write_tables(ROWS, tmp_path)


def test_the_spread_within_runs_is_shown(tmp_path: Path) -> None:
    """Ten fine-tunings of one encoder: the deviation of their mean's values in brackets."""
    values = [70.0, 72.0, 71.0]
    folder = tmp_path / "runs" / "all_seed-0"
    folder.mkdir(parents=True)
    score = {"protocol": "finetune", "task": "BBBP", "metric": "roc-auc", "split": "test"}
    score |= {"value": 71.0, "details": {"values": values, "std": 0.8}}
    (folder / "results.json").write_text(json.dumps({"scores": [score]}))
    (found,) = tabulate([Cell((), 0, {}, folder)])
    assert found.within == (3, 1.0)
    assert RowText.of(found).value == "71.00 (± 1.00 over 3)"
    several = replace(found, values=[71.0, 73.0], seeds=[0, 1], mean=72.0, std=1.41)
    assert RowText.of(several).value == "72.00 ± 1.41 (± 1.00 over 3)"


def test_a_plain_figure_is_no_comparison() -> None:
    plain = row("macl", "svm accuracy-plain", HIGH, LOW)
    assert not plain.has_verdict
    assert correct([plain])[0].difference == plain.difference
