"""The paper's numbers and ours side by side, with the differences between the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.files import atomic_write
from macl.experiments.compare import Cell, Setting, is_finished
from macl.experiments.looks import looks_text, read_looks
from macl.experiments.rows import Row, correct, tabulate
from macl.experiments.tables import EMPTY, RowText, correction, markdown_table, write_tables
from macl.paper.reproduce import Departure, departures
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
    run_as = _run_as(table, scale)
    first = table.settings(scale)[0][0][:1]
    lines = []
    for metric in dict.fromkeys([*table.metrics, *metrics]):
        for setting in table.labels():
            paper = published.get((metric, setting))
            ours = run.get((setting, metrics.get(metric, "")))
            gain = None
            base = published.get((metric, first + setting[1:]))
            if paper is not None and base is not None and setting[:1] != first:
                gain = paper.value - base.value
            if paper is not None or ours is not None:
                lines.append(Line(setting, metric, paper, gain, ours, run_as.get(setting, "")))
    return lines


def _run_as(table: PaperTable, scale: Scale) -> dict[Setting, str]:
    """The overrides behind each label that are not the paper's."""
    paper = dict(table.settings(table.scales["paper"]))
    return {
        setting: " ".join(
            texts_of({k: v for k, v in own.items() if v != paper.get(setting, {}).get(k)})
        )
        for setting, own in table.settings(scale)
    }


@dataclass(frozen=True)
class SideBySide:
    """What a reproduction found: its lines, the same as text, and the files that were written."""

    lines: list[Line]
    header: list[str]
    body: list[list[str]]
    files: list[Path]

    def frame(self) -> DataFrame:
        """The lines as a table: the paper's numbers, ours and both gains."""
        import pandas as pd

        return pd.DataFrame(map(_tidy, self.lines))


def write_up(
    table: PaperTable, scale: str, cells: Sequence[Cell], folder: Path, command: str
) -> SideBySide:
    """Write what a reproduction found.

    reproduction.md and reproduction.parquet hold the paper's numbers beside ours; table.* ours
    alone, by seed; the figure of the table, if it has one, is drawn as PNG and PDF.
    """
    runs = table.scale(scale)
    files: list[Path] = []
    lines: list[Line] = []
    header: list[str] = []
    body: list[list[str]] = []
    notes = table.notes
    parts = [f"# {table.where}: {table.title}", f"Made by `{command}`."]
    if runs is not None:
        # The user may have left out protocols; their cells stay empty.
        wanted = set((runs.metrics or table.metrics).values())
        shown = (row for row in tabulate(cells) if row.metric in wanted or row.kind == "training")
        rows = correct(list(shown))
        files += write_tables(rows, folder)
        lines = line_up(table, runs, rows)
        files.append(_write_parquet(folder, lines))
        header, body = as_cells(table, lines)
        parts += [markdown_table(header, body), _legend(table, runs, lines)]
        parts += filter(None, [correction(rows), looks_text(read_looks(folder))])
        parts += ["## What differs from the paper", _departures(departures(table, cells))]
        notes = (*notes, *runs.notes)
    parts.append("\n".join(f"- {note}" for note in notes))
    page = folder / "reproduction.md"
    atomic_write(page, lambda file: file.write(("\n\n".join(parts) + "\n").encode()))
    files.append(page)
    if table.figure is not None:
        from macl.paper.figures import draw

        files += draw(table, lines, [*filter(is_finished, cells)], folder)
    return SideBySide(lines, header, body, files)


def as_cells(table: PaperTable, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table that shows both."""
    stand_ins = any(line.run_as for line in lines)
    header = [*table.axes, *(["run here as"] if stand_ins else []), "metric", "paper", "here"]
    body = [
        [
            *(label for _, label in line.setting),
            *([line.run_as or EMPTY] if stand_ins else []),
            line.metric,
            _published(line.paper, table.decimals),
            EMPTY if line.ours is None else RowText.of(line.ours).value,
            EMPTY if line.gain is None else f"{line.gain:+.{table.decimals}f}",
            _gain(line.ours),
        ]
        for line in lines
    ]
    return [*header, "gain in the paper", "gain here"], body


def _legend(table: PaperTable, scale: Scale, lines: Sequence[Line]) -> str:
    base = table.settings(scale)[0][0][0][1]
    seeds = max((len(line.ours.values) for line in lines if line.ours), default=0)
    return (
        f"Here: mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}. Gains are over "
        f"{base}; ours are paired by seed, with a 95% t interval."
    )


def _departures(found: Sequence[Departure]) -> str:
    if not found:
        return "No key of the recipe."
    return markdown_table(["key", "paper", "here"], [[d.key, d.paper, d.here] for d in found])


def _write_parquet(folder: Path, lines: Sequence[Line]) -> Path:
    import pandas as pd

    file = folder / "reproduction.parquet"
    atomic_write(file, pd.DataFrame(map(_tidy, lines)).to_parquet)
    return file


def _tidy(line: Line) -> dict[str, object]:
    ours = line.ours
    difference = None if ours is None else ours.difference
    return {
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
        "seeds": 0 if ours is None else len(ours.values),
    }


def _published(number: Published | None, decimals: int) -> str:
    if number is None:
        return EMPTY
    spread = "" if number.std is None else f" ± {number.std:.{decimals}f}"
    return f"{number.value:.{decimals}f}{spread}"


def _gain(row: Row | None) -> str:
    if row is None or row.difference is None:
        return EMPTY
    text = RowText.of(row)
    return ", ".join(filter(None, (f"{text.difference} {text.interval}".strip(), text.verdict)))
