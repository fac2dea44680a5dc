"""README's and which.md's numbers of evidence follow from the studies' lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
from evidence import DCL, INFO_NCE, PARTS, best, dev_choice, paired, sentence_curves
from temperature_settings import control_level


@pytest.mark.parametrize("place", PARTS, ids=lambda place: f"{place[0].name}-{place[1]}")
def test_a_page_shows_what_the_lines_give(place: tuple[Path, str]) -> None:
    page, name = place
    marked = f"<!-- {name}:begin -->\n{PARTS[place]()}\n<!-- {name}:end -->"
    assert marked in page.read_text(encoding="utf-8")


def test_prose_about_sentences_has_the_tables_numbers() -> None:
    """Best against best as it stands in the prose of every page that names it."""
    curves = sentence_curves()
    found = evidence.needed(paired(best(curves[DCL])[1], best(curves[INFO_NCE])[1]))
    numbers = [f"{value:.1f}" for value in (found.mean, found.low, found.high)]
    pattern = re.compile(r"\+?{} (?:points of\s+STS )?\[\+?{}, \+?{}\]".format(*numbers))
    root = evidence.ROOT / "docs"
    for page in ("which.md", "methods/dcl.md", "results/README.md", "results/dilemma.md"):
        assert pattern.search((root / page).read_text(encoding="utf-8")), page


def test_a_run_that_two_studies_share_counts_once() -> None:
    """The temperature study copied InfoNCE and DCL at 0.05 and 0.1 from the other study's lines."""
    for curve in sentence_curves().values():
        assert all(len(seeds) in (3, 5) for seeds in curve.values())
        values = [tuple(seeds.values()) for seeds in curve.values()]
        assert len(set(values)) == len(values)
    assert dev_choice() == {INFO_NCE: 0.1, DCL: 0.05}


def test_the_level_of_a_varying_temperature() -> None:
    cosine = {"name": "cosine", "lowest": 0.1, "highest": 1.0}
    setting = {"name": "nt-xent", "temperature": cosine}
    assert control_level(setting, 0.55) == pytest.approx(0.1**0.5)
    per_pair = {"name": "dystress", "lowest": 0.05, "highest": 0.1}
    assert 0.05 < control_level(per_pair, 0.098) < 0.067  # the negatives', not the positives'
    assert control_level({"name": "macl", "temperature": 0.1}, 0.12) == 0.12


def test_the_page_on_choosing_fits_on_two_screens() -> None:
    lines = evidence.WHICH.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert lines[2].startswith("| you have | take |")
