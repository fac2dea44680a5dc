"""A comparison's results as text, and its tables as parquet, markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from macl.core.files import atomic_write
from macl.experiments.compare import Row

if TYPE_CHECKING:
    from pandas import DataFrame

EMPTY = "–"
"""The cell without a number."""

Table = tuple[list[str], list[list[str]]]
"""Header and lines."""

DIFFERENCES = "Difference to the baseline (paired by seed, 95% t interval)"


@dataclass(frozen=True)
class RowText:
    """A row as it is written in every table and page; empty where a part does not apply."""

    value: str
    """Mean ± std; the mean alone of a single seed."""
    difference: str
    interval: str
    """Empty for a single seed."""
    verdict: str

    @classmethod
    def of(cls, row: Row) -> RowText:
        """The texts of a row."""
        # Of geometry and of training figures neither more nor less is better by itself.
        is_score = row.kind == "score" and not row.metric.startswith("geometry")
        digits = 2 if is_score else 3
        spread = f" ± {row.std:.{digits}f}" if len(row.values) > 1 else ""
        value = f"{row.mean:.{digits}f}{spread}"
        found = row.difference
        if found is None:
            return cls(value, "", "", "")
        interval = f"[{found.low:+.{digits}f}, {found.high:+.{digits}f}]" if found.pairs > 1 else ""
        verdict = found.verdict if is_score else ""
        return cls(value, f"{found.mean:+.{digits}f}", interval, verdict)


def write_tables(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the tables of a comparison; returns their files.

    table.parquet has a line per seed, summary.parquet one per setting and metric with its
    difference and verdict; table.md and table.tex show both.
    """
    import pandas as pd

    tidy = [
        {**row.setting, "metric": row.metric, "seed": seed, "value": value}
        for row in rows
        for seed, value in zip(row.seeds, row.values, strict=True)
    ]
    writers: dict[str, Callable[[BinaryIO], Any]] = {
        "table.parquet": pd.DataFrame(tidy).to_parquet,
        "summary.parquet": summary(rows).to_parquet,
        "table.md": lambda file: file.write(markdown(rows).encode()),
        "table.tex": lambda file: file.write(latex(rows).encode()),
    }
    for name, write in writers.items():
        atomic_write(folder / name, write)
    return [folder / name for name in writers]


def summary(rows: Sequence[Row]) -> DataFrame:
    """One line per setting and metric: mean, standard deviation, difference, interval, verdict."""
    import pandas as pd

    return pd.DataFrame(map(_summary, rows))


def _summary(row: Row) -> dict[str, object]:
    found = row.difference
    return {
        **row.setting,
        "metric": row.metric,
        "seeds": len(row.seeds),
        "mean": row.mean,
        "std": row.std,
        "difference": found and found.mean,
        "low": found and found.low,
        "high": found and found.high,
        "verdict": RowText.of(row).verdict,
    }


def results(rows: Sequence[Row]) -> Table:
    """One line per setting, one column per metric."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    settings: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        settings.setdefault(tuple(row.setting.values()), {})[row.metric] = RowText.of(row).value
    return [*rows[0].setting, *metrics], [
        [*setting, *(by_metric.get(metric, EMPTY) for metric in metrics)]
        for setting, by_metric in settings.items()
    ]


def differences(rows: Sequence[Row]) -> Table:
    """One line per score that has a baseline: difference, interval and verdict."""
    header = [*rows[0].setting, "metric", "difference", "95% interval", "verdict"]
    shown = [(row, RowText.of(row)) for row in rows if row.difference and row.kind == "score"]
    return header, [
        [
            *row.setting.values(),
            row.metric,
            text.difference,
            text.interval or EMPTY,
            text.verdict or EMPTY,
        ]
        for row, text in shown
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The results, then the differences to the baseline where there are any."""
    parts = [markdown_table(*results(rows))]
    header, lines = differences(rows)
    if lines:
        parts += [f"{DIFFERENCES}:", markdown_table(header, lines)]
    return "\n\n".join(parts) + "\n"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells as a markdown table. (pandas would need the package tabulate for these two lines.)"""
    out = [header, ["---"] * len(header), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in out
    )


def latex(rows: Sequence[Row]) -> str:
    """The same tables, each as a booktabs `tabular`."""
    labels = len(rows[0].setting)
    parts = [_tabular(*results(rows), labels)]
    header, lines = differences(rows)
    if lines:
        parts += [f"% {DIFFERENCES}", _tabular(header, lines, labels + 1)]
    return "\n".join(parts)


def _tabular(header: list[str], lines: list[list[str]], labels: int) -> str:
    import pandas as pd

    columns = "l" * labels + "r" * (len(header) - labels)
    frame = pd.DataFrame(lines, columns=header)
    text = str(frame.to_latex(index=False, escape=True, column_format=columns))
    # A bracket at the beginning of a line would be taken for an argument of the \\ before it.
    return re.sub(r"^\[", "{}[", text.replace("±", r"$\pm$"), flags=re.MULTILINE)
