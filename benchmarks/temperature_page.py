"""docs/results/temperatures.md from the records of the temperature study."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import macl
import temperature_cells as cells
from macl.experiments.rows import Row, correct
from macl.experiments.statistics import Difference, mean_std, paired_difference
from macl.experiments.tables import EMPTY, RowText, correction, markdown_table
from temperature_settings import TASKS, Method, Setting, methods

TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10 at laptop scale",
    "sentences": "Sentences",
}

HEAD = """# Temperature methods since 2023, beside NT-Xent

> Made on {date} with {version}; the rows with {versions}.

    python benchmarks/temperature_study.py --tasks digits,cifar10 --data DATA
    python benchmarks/mlm.py DATA/text/wiki100k.txt mlm --limit 100000 --width 128 --layers 3
    python benchmarks/temperature_study.py --tasks sentences --data DATA --encoder mlm
    python benchmarks/temperature_study.py --write

The methods are described in [losses.md](../losses.md).

**How it was done.** Each method has three candidate settings around its published defaults
(`benchmarks/temperature_settings.py`; Temperature-free has nothing to choose). They run with seed 0
and are judged on a validation part of the training data, on sentences on STS-B dev. The best one
runs with all seeds on the whole training data and is judged on the test data. *Control* is NT-Xent
with τ fixed at the mean τ that the method had in its trainings, or InfoNCE where the method
contrasts with the other view alone; for DySTreSS that is the mean τ of the positive pairs. A method
that is ahead of the baseline and not of its control owes its lead to the level of τ. SupCon uses
the labels of the training data: it is shown, and not tested against the others. Tests are on the
first score alone, as each further one would weaken all of them.

Every row of [data/temperatures.csv](data/temperatures.csv) is one training with all its settings;
the study continues from it. W̄ and effective anchors are means over the last epoch.
"""


def level_text(rows: list[cells.Row]) -> str:
    found = [float(row["level"]) for row in rows if row["level"]]
    return f"{mean_std(found)[0]:.3f}" if found else EMPTY


def setting_text(setting: Setting) -> str:
    """A setting without the loss' name: "temperature 0.1, rho 0.4"."""
    parts = []
    for key, value in setting.items():
        if key in ("name", "negatives", "symmetric"):
            continue
        inner = {k: v for k, v in value.items() if k != "name"} if isinstance(value, dict) else None
        kind = f"{value['name']} " if isinstance(value, dict) else ""
        parts.append(f"{key} {kind}{json.dumps(inner)[1:-1]}" if inner else f"{key} {value}")
    return ", ".join(parts).replace('"', "") or EMPTY


class TaskResults:
    """The finished cells of a task, as rows with differences."""

    def __init__(self, records: cells.Records, name: str) -> None:
        self.name, self.task, self.records = name, TASKS[name], records
        self.methods = methods(self.task)
        self.chosen = {
            method: setting
            for method, own in self.methods.items()
            if (setting := cells.chosen(records, name, method, own)) is not None
        }
        self.baseline = next(iter(self.methods))
        self.rows = correct([*self._rows()])

    def of(self, method: str, setting: Setting | None) -> list[cells.Row]:
        """The finished rows of a setting, by seed."""
        if setting is None:
            return []
        seeded = cells.seeded(self.name, method, setting)
        return [row for cell in seeded if (row := self.records.get(cell))]

    def control(self, method: str) -> Setting | None:
        """The setting of a method's control; None where there is none, or not yet."""
        setting, own = self.chosen.get(method), self.methods[method]
        if setting is None or not own.has_level or method == self.baseline:
            return None
        return cells.control_of(self.records, self.name, method, setting)

    def _rows(self) -> Iterator[Row]:
        for method in self.methods:
            finished = self.of(method, self.chosen.get(method))
            base = self.of(self.baseline, self.chosen.get(self.baseline))
            fixed = self.of(f"{method}, control", self.control(method))
            for score in self.task.scores:
                own = by_seed(finished, score)
                if own:
                    mean, std = mean_std([*own.values()])
                    # Tests on the first score alone: each further one would weaken all of them.
                    tested = score == self.task.scores[0] and not self.methods[method].supervised
                    compared = tested and method != self.baseline
                    yield Row(
                        {"method": method},
                        score,
                        [*own],
                        [*own.values()],
                        mean,
                        std,
                        difference(own, by_seed(base, score)) if compared else None,
                        to_control=difference(own, by_seed(fixed, score)) if compared else None,
                    )

    def markdown(self) -> str:
        """The section of the task."""
        parts = [f"## {TITLES[self.name]}", self._what(), self._results(), self._differences()]
        parts += [correction(self.rows), self._verdict(), self._not_run()]
        return "\n\n".join(filter(None, parts))

    def _what(self) -> str:
        sizes = ", ".join(f"{key}={value}" for key, value in self.task.sizes.items())
        return f"Recipe `{self.task.recipe}` with {sizes}; {self.task.seeds} seeds."

    def _label(self, method: str) -> str:
        return f"{method} (supervised)" if self.methods[method].supervised else method

    def _results(self) -> str:
        lines = []
        texts = {(row.setting["method"], row.metric): RowText.of(row).value for row in self.rows}
        for method, setting in self.chosen.items():
            rows = self.of(method, setting)
            if rows:
                values = [texts.get((method, score), EMPTY) for score in self.task.scores]
                fixed = self.control(method)
                control = fixed and by_seed(self.of(method, fixed), self.task.scores[0])
                lines.append(
                    [
                        self._label(method),
                        setting_text(setting),
                        *values,
                        "{:.2f} ± {:.2f}".format(*mean_std([*control.values()]))
                        if control
                        else EMPTY,
                        level_text(rows),
                        figure(rows, "temperature_std"),
                        figure(rows, "gradient_scale"),
                        figure(rows, "effective_anchors"),
                    ]
                )
        header = ["", "chosen", *self.task.scores, f"control's {self.task.scores[0]}"]
        return markdown_table([*header, "mean τ", "std of τ", "W̄", "effective anchors"], lines)

    def _differences(self) -> str:
        lines = []
        for row in self.rows:
            for to, found in (("baseline", row.difference), ("control", row.to_control)):
                if found is not None:
                    text = RowText.of(row, found)
                    lines.append(
                        [
                            self._label(row.setting["method"]),
                            row.metric,
                            to,
                            text.difference,
                            text.interval or EMPTY,
                            text.detectable or EMPTY,
                            text.verdict or EMPTY,
                        ]
                    )
        header = ["", "score", "to", "difference", "95% interval", "detectable", "verdict"]
        return f"Baseline: {self.baseline}.\n\n" + markdown_table(header, lines) if lines else ""

    def _verdict(self) -> str:
        """What the table shows and what it does not, in a sentence."""
        ahead: dict[str, list[str]] = {"ahead": [], "behind": []}
        for row in self.rows:
            for to, found in (("the baseline", row.difference), ("its control", row.to_control)):
                if found is not None and found.verdict in ahead:
                    label = self._label(row.setting["method"])
                    ahead[found.verdict].append(f"{label} of {to} in {row.metric}")
        said = [f"{word}: {'; '.join(each)}" for word, each in ahead.items() if each]
        if not any(row.difference for row in self.rows):
            return ""
        shown = f"**Shown after correction** — {'. '.join(said)}." if said else ""
        return (
            shown
            + (" " if shown else "")
            + (
                "For every other line no difference is shown."
                if said
                else "**No difference is shown** for any method, to the baseline or to its control."
            )
        )

    def _not_run(self) -> str:
        lines = [f"{method}: {why}." for method, why in self.task.left_out.items()]
        for method, own in self.methods.items():
            lines += self._missing(method, own)
        return "Not run:\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""

    def _missing(self, method: str, own: Method) -> Iterator[str]:
        if method not in self.chosen:
            yield f"{method}: its candidates have not all run."
            return
        count = len(self.of(method, self.chosen[method]))
        if count < self.task.seeds:
            yield f"{method}: {count} of {self.task.seeds} seeds."
        if own.has_level and method != self.baseline:
            count = len(self.of(method, self.control(method)))
            if count < self.task.seeds:
                yield f"{method}, control: {count} of {self.task.seeds} seeds."


def by_seed(rows: list[cells.Row], score: str) -> dict[int, float]:
    return {int(row["seed"]): cells.value(row, score) for row in rows}


def difference(own: dict[int, float], other: dict[int, float]) -> Difference | None:
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    return paired_difference([own[seed] for seed in shared], [other[seed] for seed in shared])


def figure(rows: list[cells.Row], name: str) -> str:
    found = [float(row[name]) for row in rows if row[name]]
    return f"{mean_std(found)[0]:.3f}" if found else EMPTY


def write(path: Path, records_file: Path) -> None:
    """Write the page."""
    records = cells.Records(records_file)
    if not records.rows:
        raise SystemExit(f"{records_file} has no rows: run the study first.")
    versions = ", ".join(sorted({row["version"] for row in records.rows.values()}))
    head = HEAD.format(
        date=datetime.date.today().isoformat(), version=macl.__version__, versions=versions
    )
    ran = {row["task"] for row in records.rows.values()}
    sections = [TaskResults(records, name).markdown() for name in TASKS if name in ran]
    missing = [TITLES[name] for name in TASKS if name not in ran]
    if missing:
        sections.append(f"Not run at all: {', '.join(missing)}.")
    path.write_text("\n\n".join([head.strip(), *sections]) + "\n", encoding="utf-8")
    print(path)
