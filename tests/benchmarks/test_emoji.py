"""The emoji study: its grid are valid recipes, its tables follow from its lines."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import emoji
from macl import recipes
from study import Line, Lines


def test_every_run_of_the_grid_is_a_recipe_of_its_own() -> None:
    grid = [*emoji.trials(Path("captions.csv"))]
    assert len({trial.key for trial in grid}) == len(grid)
    for trial in grid:
        recipes.load(trial.recipe, trial.overrides)


def test_a_table_has_a_row_for_each_loss_with_its_difference(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    place = emoji.regime(emoji.CONCEPTS, emoji.TINY)
    for seed in range(3):
        for label, gain in ((emoji.BASELINE, 0.0), ("MACL", 4.0 + 0.5 * seed)):
            scores = dict.fromkeys(emoji.SHOWN, 20.0 + seed + gain)
            lines.add(Line(place, label, seed, "", scores, {}, None, 1.0, "0"))
    text = emoji.tables(lines)
    assert "### Unseen concepts" in text
    assert "Unseen style" not in text
    (row,) = (line for line in text.splitlines() if "| MACL |" in line)
    assert "**+4.50 [+3.26, +5.74]**" in row


def test_the_page_shows_what_the_lines_give() -> None:
    assert emoji.tables(Lines(emoji.LINES)) in emoji.PAGE.read_text(encoding="utf-8")
