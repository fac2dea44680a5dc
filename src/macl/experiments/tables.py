"""A comparison's table as parquet, markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macl.experiments.compare import STORY, Row


def write_tables(rows: Sequence[Row], folder: Path) -> list[Path]:
    """table.parquet (one line per seed), table.md and table.tex (mean ± std, difference)."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    tidy = [
        {**row.setting, "metric": row.metric, "seed": seed, "value": value}
        for row in rows
        for seed, value in enumerate(row.values)
    ]
    files = [folder / f"table.{suffix}" for suffix in ("parquet", "md", "tex")]
    pd.DataFrame(tidy).to_parquet(files[0])
    files[1].write_text(markdown(rows), encoding="utf-8")
    files[2].write_text(latex(rows), encoding="utf-8")
    return files


def markdown(rows: Sequence[Row]) -> str:
    """One line per setting, one column per metric, then the differences to the baseline."""
    header, lines = _grid(rows)
    table = markdown_table(header, lines)
    told = [
        f"- {_named(row)}, {row.metric}: {row.difference.mean:+.2f} "
        f"[{row.difference.low:+.2f}, {row.difference.high:+.2f}], {row.difference.verdict}"
        for row in rows
        if row.difference is not None and row.metric not in STORY
    ]
    more = "\n\nDifference to the baseline (paired by seed, 95% t interval):\n\n" + "\n".join(told)
    return table + (more if told else "") + "\n"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells as a markdown table."""
    out = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in out)


def latex(rows: Sequence[Row]) -> str:
    """The same table as a booktabs `tabular`."""
    header, lines = _grid(rows)

    def line(cells: list[str]) -> str:
        text = " & ".join(cells).replace("±", r"$\pm$").replace("_", r"\_").replace("%", r"\%")
        return text + r" \\"

    body = [line(header), r"\midrule", *(line(cells) for cells in lines)]
    columns = "l" * len(rows[0].setting) + "r" * (len(header) - len(rows[0].setting))
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", *body, r"\bottomrule", end]) + "\n"


def _grid(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(row.metric for row in rows))
    settings: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        settings.setdefault(tuple(row.setting.values()), {})[row.metric] = row
    header = [*rows[0].setting, *metrics]
    return header, [
        [*setting, *(_cell(by_metric[m]) for m in metrics)]
        for setting, by_metric in settings.items()
    ]


def _cell(row: Row) -> str:
    digits = 3 if row.metric in STORY else 2
    return f"{row.mean:.{digits}f} ± {row.std:.{digits}f}"


def _named(row: Row) -> str:
    return ", ".join(f"{key}={value}" for key, value in row.setting.items())


def as_cells(rows: Sequence[Row]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Header and lines for a terminal table."""
    header, lines = _grid(rows)
    return header, [tuple(line) for line in lines]
