"""A comparison's results as text, and its tables as parquet, markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.files import atomic_write, write_text
from macl.experiments.records import looks_text, read_looks, record_look
from macl.experiments.rows import Row, pool
from macl.experiments.statistics import MARGIN, Difference

if TYPE_CHECKING:
    from pandas import DataFrame

EMPTY = "–"
"""The cell without a number."""

Table = tuple[list[str], list[list[str]]]
"""Header and lines."""

DIFFERENCES = "Difference to the baseline (paired by seed, 95% t interval)"

POOLED = "Difference to the baseline, pooled over settings (two-level 95% t interval)"


def signed(value: float, digits: int = 2) -> str:
    """A difference as text: "+0.43"; what rounds to zero is "+0.00"."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # -0.0 + 0.0 is 0.0


def interval_text(difference: Difference, digits: int = 2) -> str:
    """The 95% interval: "[+0.24, +0.61]", with † if its width is of one item; empty: none."""
    if math.isinf(difference.low):
        return ""
    mark = "†" if difference.bounded else ""
    return f"[{signed(difference.low, digits)}, {signed(difference.high, digits)}]{mark}"


@dataclass(frozen=True)
class RowText:
    """A row as it is written in every table and page; empty where a part does not apply."""

    value: str
    """Mean ± std over seeds, then the spread within runs: "74.10 ± 0.40 (± 0.66 over 10)"."""
    difference: str = ""
    interval: str = ""
    verdict: str = ""
    detectable: str = ""

    @classmethod
    def of(cls, row: Row, difference: Difference | None = None) -> RowText:
        """The texts of a row, with its difference to the baseline unless another is given."""
        digits = 2 if row.has_verdict else 3
        spread = f" ± {row.std:.{digits}f}" if len(row.values) > 1 else ""
        count, inner = row.within or (0, 0.0)
        repeated = f" (± {inner:.{digits}f} over {count})" if count else ""
        value = f"{row.mean:.{digits}f}{spread}{repeated}"
        difference = difference or row.difference
        if difference is None:
            return cls(value)
        interval = interval_text(difference, digits)
        verdict = difference.verdict if row.has_verdict else ""
        detectable = f"{difference.detectable:.{digits}f}" if interval and row.has_verdict else ""
        return cls(value, signed(difference.mean, digits), interval, verdict, detectable)


def write_tables(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write table.parquet, summary.parquet, table.md and table.tex; returns their files.

    The first has a line per seed. Writing them is a look at the results, which looks.json counts.
    """
    import pandas as pd

    tidy = [
        {**row.setting, "metric": row.metric, "seed": seed, "value": value}
        for row in rows
        for seed, value in zip(row.seeds, row.values, strict=True)
    ]
    settings = {tuple(row.setting.items()): row.setting for row in rows}
    record_look(folder, max(len(row.seeds) for row in rows), [*settings.values()])
    notes = notes_on(rows, folder)
    names = ("table.parquet", "summary.parquet", "table.md", "table.tex")
    files = [folder / name for name in names]
    atomic_write(files[0], pd.DataFrame(tidy).to_parquet)
    atomic_write(files[1], summary(rows).to_parquet)
    write_text(files[2], markdown(rows, notes))
    write_text(files[3], latex(rows, notes))
    return files


def notes_on(rows: Sequence[Row], folder: Path) -> list[str]:
    """What a reader of the tables in `folder` has to know: corrections, and looks so far."""
    return [*filter(None, [correction(rows), looks_text(read_looks(folder))])]


def correction(rows: Sequence[Row]) -> str:
    """How verdicts are corrected and what "detectable" means; empty where there is no verdict."""
    tested = [each for row in rows for each in row.tested]
    counts = {each.comparisons for each in tested if each.adjusted is not None}
    if not counts:
        return ""
    count = max(counts)
    level = "5%" if count == 1 else f"5%/{count}, the strictest level of Holm"
    corrected = (
        "The verdict is of one comparison and needs no correction."
        if count == 1
        else f"Verdicts are corrected for {count} comparisons (Holm, 5% for all together); "
        "intervals are not."
    )
    text = (
        f"{corrected} Detectable: the smallest true difference that would be shown with 80% power "
        f"at this number of seeds and this spread (paired t test, {level}). Equal: shown to lie "
        f"within ±{MARGIN:g} points (two one-sided tests)."
    )
    bounded = (
        " †: the differences vary by less than one test item over the seeds, which is an artifact "
        "of a small test set; the interval is that of a spread of one item."
    )
    return text + bounded if any(each.bounded for each in tested) else text


def summary(rows: Sequence[Row]) -> DataFrame:
    """One line per setting and metric: mean, standard deviation, difference, interval, verdict."""
    import pandas as pd

    return pd.DataFrame(
        {
            **row.setting,
            "metric": row.metric,
            "seeds": len(row.seeds),
            "mean": row.mean,
            "std": row.std,
            "difference": difference and difference.mean,
            "low": difference and difference.low,
            "high": difference and difference.high,
            "p": difference and difference.p,
            "adjusted_p": difference and difference.adjusted,
            "comparisons": difference and difference.comparisons,
            "detectable": difference and difference.detectable,
            "verdict": RowText.of(row).verdict,
            "to_control": control and control.mean,
            "to_control_low": control and control.low,
            "to_control_high": control and control.high,
            "to_control_verdict": control and RowText.of(row, control).verdict,
        }
        for row in rows
        for difference, control in ((row.difference, row.to_control),)
    )


def results(rows: Sequence[Row]) -> Table:
    """One line per setting, one column per metric."""
    empty = dict.fromkeys((row.metric for row in rows), EMPTY)
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault(tuple(row.setting.values()), row.setting | empty)
        line[row.metric] = RowText.of(row).value
    return as_table(lines.values())


def differences(rows: Sequence[Row]) -> Table:
    """One line per score and difference: to the baseline, and to the level control if any."""
    several = any(row.to_control for row in rows)
    return as_table(
        {
            **row.setting,
            "metric": row.metric,
            **({"to": to} if several else {}),
            "difference": text.difference,
            "95% interval": text.interval or EMPTY,
            "detectable": text.detectable or EMPTY,
            "verdict": text.verdict or EMPTY,
        }
        for row in rows
        for to, difference in (("baseline", row.difference), ("level control", row.to_control))
        if row.kind == "score" and difference is not None
        for text in (RowText.of(row, difference),)
    )


def pools(rows: Sequence[Row]) -> Table:
    """One line per label of the first varied key and score, over all other settings."""
    return as_table(
        {
            next(iter(rows[0].setting)): label,
            "metric": metric,
            "difference": signed(pooled.mean),
            "95% interval": interval_text(pooled) or EMPTY,
            "settings": str(pooled.settings),
            "pairs": str(pooled.pairs),
            "std between": f"{pooled.between:.2f}",
            "std within": EMPTY if math.isnan(pooled.within) else f"{pooled.within:.2f}",
            "verdict": pooled.verdict,
        }
        for (label, metric), pooled in pool(rows).items()
    )


def as_table(lines: Iterable[dict[str, str]]) -> Table:
    """Header and lines from the cells of each line by column."""
    every = list(lines)
    return [*every[0]] if every else [], [[*line.values()] for line in every]


def pool_note(rows: Sequence[Row]) -> str:
    """How the pools' verdicts are corrected; empty without pools."""
    count = next((pooled.comparisons for pooled in pool(rows).values()), 0)
    text = (
        "Pools: settings weigh the same, and the interval is for settings of this kind; verdicts "
        f"are corrected for {count} pools (Holm)."
    )
    return text if count else ""


def parts(rows: Sequence[Row]) -> list[tuple[str, Table, int]]:
    """Title, table and number of label columns of each table that has lines."""
    labels = len(rows[0].setting)
    every = [
        ("", results(rows), labels),
        (DIFFERENCES, differences(rows), labels + 1),
        (POOLED, pools(rows), 2),
    ]
    return [part for part in every if part[1][1]]


def markdown(rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """The results, then the differences to the baseline and the pools where there are any."""
    texts = []
    for title, table, _ in parts(rows):
        texts += [title and f"{title}:", markdown_table(*table)]
    return "\n\n".join(filter(None, [*texts, *notes, pool_note(rows)])) + "\n"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells as a markdown table; pandas would need the package tabulate."""
    out = [header, ["---"] * len(header), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in out
    )


def latex(rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """The same tables, each as a booktabs `tabular`, and the notes as comments."""
    import pandas as pd

    texts = []
    for title, (header, lines), labels in parts(rows):
        columns = "l" * labels + "r" * (len(header) - labels)
        frame = pd.DataFrame(lines, columns=header)
        text = str(frame.to_latex(index=False, escape=True, column_format=columns))
        # A bracket at the beginning of a line would be taken for an argument of the \\ before it.
        text = re.sub(r"^\[", "{}[", text.replace("±", r"$\pm$"), flags=re.MULTILINE)
        texts += [title and f"% {title}", text]
    texts += [note and f"% {note}" for note in (*notes, pool_note(rows))]
    return "\n".join(filter(None, texts))
