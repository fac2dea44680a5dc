"""The tables of docs/results/image-text.md from the finished runs of emoji.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from macl.experiments.statistics import mean_std, paired_difference

PAGE = Path(__file__).parents[1] / "docs" / "results" / "image-text.md"
BEGIN, END = "<!-- emoji: begin -->", "<!-- emoji: end -->"
METRICS = {
    f"{way} {what}": f"{short} {what}"
    for way, short in (("image-to-text", "image→text"), ("text-to-image", "text→image"))
    for what in ("R@1", "R@5", "R@10", "median rank")
}
"""Metrics of the runs → headings of the tables."""
BASELINE = "fixed τ"
COMPARED = "image-to-text R@1"

Row = Mapping[str, str]


def write_tables(rows: Sequence[Row]) -> str:
    """Put the tables between the marks of the page; returns them."""
    text = "\n\n".join(
        "\n".join(lines) for task in _distinct(rows, "task") for lines in _task(rows, task)
    )
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return text


def _task(rows: Sequence[Row], task: str) -> Iterator[list[str]]:
    """The heading, the scores and the paired differences of a task."""
    own = [row for row in rows if row["task"] == task]
    yield [f"### {task.capitalize()}"]
    shown = [key for key in METRICS if key.endswith(("R@1", "R@5", "rank"))]
    lines = _header(["text tower", "loss", "seeds", *(METRICS[key] for key in shown)])
    compared = _header(["text tower", "loss", "seeds", "difference of R@1", "95%", "verdict"])
    for text in _distinct(own, "text"):
        losses = {
            loss: {row["seed"]: row for row in own if (row["text"], row["loss"]) == (text, loss)}
            for loss in _distinct(own, "loss")
        }
        for loss, seeds in losses.items():
            if not seeds:
                continue
            cells = [_spread([float(row[key]) for row in seeds.values()]) for key in shown]
            lines.append(_line([text, loss, str(len(seeds)), *cells]))
            if loss != BASELINE:
                compared += _difference(text, loss, seeds, losses.get(BASELINE, {}))
    yield lines
    yield [
        f"Image→text R@1 against {BASELINE}, paired by seed, with a 95% t interval; the verdict is "
        "of that one comparison:"
    ]
    yield compared


def _difference(
    text: str, loss: str, seeds: Mapping[str, Row], baseline: Mapping[str, Row]
) -> Iterator[str]:
    both = [seed for seed in seeds if seed in baseline]
    if not both:
        return
    values, fixed = ([float(side[seed][COMPARED]) for seed in both] for side in (seeds, baseline))
    found = paired_difference(values, fixed)
    interval = f"[{found.low:+.1f}, {found.high:+.1f}]" if len(both) > 1 else "–"
    yield _line([text, loss, str(len(both)), f"{found.mean:+.1f}", interval, found.verdict])


def _spread(values: Sequence[float]) -> str:
    mean, std = mean_std(values)
    return f"{mean:.1f} ± {std:.1f}" if len(values) > 1 else f"{mean:.1f}"


def _distinct(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _header(names: Sequence[str]) -> list[str]:
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
