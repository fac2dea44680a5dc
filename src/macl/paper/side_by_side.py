"""The paper's numbers and ours side by side, with the differences between the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.files import atomic_write, write_text
from macl.experiments import tables
from macl.experiments.compare import Cell, Setting, is_finished
from macl.experiments.rows import Row, correct, tabulate
from macl.experiments.tables import EMPTY, RowText, Table, as_table, markdown_table
from macl.paper.reproduce import departures
from macl.paper.tables import PaperTable, Published, Scale
from macl.recipes import texts_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Line:
    """One number of the table: the paper's and ours."""

    setting: Setting
    metric: str
    """As the paper calls it."""
    paper: Published | None
    """None: the paper has no such number."""
    gain: float | None
    """The paper's, over its baseline."""
    ours: Row | None
    """None: not run at this scale."""
    run_as: str
    """The overrides behind the paper's labels here, where they differ from the paper's."""


def line_up(table: PaperTable, scale: Scale, rows: Sequence[Row]) -> list[Line]:
    """Every number of the paper and every one of ours, matched by label and metric."""
    metrics = scale.metrics or table.metrics
    run = {(tuple(row.setting.items()), row.metric): row for row in rows}
    published = table.published()
    here, as_published = (dict(table.settings(s)) for s in (scale, table.scales["paper"]))
    first = table.settings(scale)[0][0][:1]
    lines = []
    for metric in dict.fromkeys([*table.metrics, *metrics]):
        for setting in table.labels():
            paper = published.get((metric, setting))
            ours = run.get((setting, metrics.get(metric, "")))
            if paper is None and ours is None:
                continue
            base = None if setting[:1] == first else published.get((metric, first + setting[1:]))
            gain = paper.value - base.value if paper and base else None
            theirs = as_published.get(setting, {})
            changed = {k: v for k, v in here.get(setting, {}).items() if v != theirs.get(k)}
            lines.append(Line(setting, metric, paper, gain, ours, " ".join(texts_of(changed))))
    return lines


@dataclass(frozen=True)
class SideBySide:
    """What a reproduction found: its lines, the same as text, and the files that were written."""

    lines: list[Line]
    table: Table
    files: list[Path]

    def frame(self) -> DataFrame:
        """The lines as a table: the paper's numbers, ours and both gains."""
        import pandas as pd

        return pd.DataFrame(
            {
                **dict(line.setting),
                "run_as": line.run_as,
                "metric": line.metric,
                "paper": line.paper and line.paper.value,
                "paper_std": line.paper and line.paper.std,
                "paper_gain": line.gain,
                "here": ours and ours.mean,
                "here_std": ours and ours.std,
                "here_gain": difference and difference.mean,
                "here_gain_low": difference and difference.low,
                "here_gain_high": difference and difference.high,
                "seeds": len(ours.values) if ours else 0,
            }
            for line in self.lines
            for ours, difference in ((line.ours, line.ours and line.ours.difference),)
        )


def write_up(
    table: PaperTable, scale: str, cells: Sequence[Cell], folder: Path, command: str
) -> SideBySide:
    """Write what a reproduction found.

    reproduction.md and reproduction.parquet hold the paper's numbers beside ours; table.* ours
    alone, by seed; the figure of the table, if it has one, is drawn as PNG and PDF.
    """
    runs, notes = table.scale(scale), table.notes
    result = SideBySide([], ([], []), [])
    parts = [f"# {table.where}: {table.title}", f"Made by `{command}`."]
    if runs is not None:
        # The user may have left out protocols; their cells stay empty.
        wanted = set((runs.metrics or table.metrics).values())
        shown = (row for row in tabulate(cells) if row.metric in wanted or row.kind == "training")
        rows = correct(list(shown))
        lines, file = line_up(table, runs, rows), folder / "reproduction.parquet"
        result = SideBySide(
            lines, as_cells(table, lines), [*tables.write_tables(rows, folder), file]
        )
        atomic_write(file, result.frame().to_parquet)
        seeds = max((len(line.ours.values) for line in lines if line.ours), default=0)
        legend = (
            f"Here: mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}. Gains are "
            f"over {table.settings(runs)[0][0][0][1]}; ours are paired by seed, with a 95% t "
            "interval."
        )
        parts += [markdown_table(*result.table), legend]
        differing = departures(table, cells)
        changed = markdown_table(["key", "paper", "here"], differing)
        parts += [*tables.notes_on(rows, folder), "## What differs from the paper"]
        parts.append(changed if differing else "No key of the recipe.")
        notes += runs.notes
    parts.append("\n".join(f"- {note}" for note in notes))
    page = folder / "reproduction.md"
    write_text(page, "\n\n".join(parts) + "\n")
    result.files.append(page)
    if table.figure is not None:
        from macl.paper.figures import draw

        result.files.extend(draw(table, result.lines, [*filter(is_finished, cells)], folder))
    return result


def as_cells(table: PaperTable, lines: Sequence[Line]) -> Table:
    """Header and lines of the table that shows both."""
    stand_ins = any(line.run_as for line in lines)
    return as_table(
        {
            **dict(line.setting),
            **({"run here as": line.run_as or EMPTY} if stand_ins else {}),
            "metric": line.metric,
            "paper": line.paper.text(table.decimals) if line.paper else EMPTY,
            "here": RowText.of(line.ours).value if line.ours else EMPTY,
            "gain in the paper": EMPTY if line.gain is None else f"{line.gain:+.{table.decimals}f}",
            "gain here": _gain(line.ours),
        }
        for line in lines
    )


def _gain(row: Row | None) -> str:
    if row is None or row.difference is None:
        return EMPTY
    text = RowText.of(row)
    return ", ".join(filter(None, (f"{text.difference} {text.interval}".strip(), text.verdict)))
