"""docs/results/temperatures.md from the lines of the temperature study."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

from macl.experiments.rows import Row, correct
from macl.experiments.statistics import Difference, mean_std, paired_difference
from macl.experiments.tables import EMPTY, RowText, correction, markdown_table
from study import Line, Lines
from temperature_settings import TASKS, Method, Setting, methods
from temperature_study import CONTROL, chosen, lines_of

PAGE = Path(__file__).parents[1] / "docs/results/temperatures.md"

TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10 at laptop scale",
    "sentences": "Sentences",
}

REMARKS = {
    "cifar10": """A small set-up (2,500 pictures, ten epochs): W̄ is 0.8 to 0.97, so W hardly acts.
All methods but Temperature-free (1.9 below, not shown) lie within 0.8 points of NT-Xent, and all
but the cosine schedule within 0.6 of their controls. What moved results is the level: the controls,
all of them NT-Xent or InfoNCE, fall from 35.8 at τ = 0.10 to 33.7 at 0.55. The cosine schedule from
0.1 to 1 has that mean τ and lies 1.9 above it (not shown).""",
    "sentences": """The baseline's τ was chosen on STS-B dev after a short training, which preferred
0.1. On the test tasks after the whole training InfoNCE is better at a lower τ: it ran at nine
levels, from 45.05 at τ = 0.149 over 48.40 at 0.088 to 49.30 at 0.063 and 48.83 at
0.050. So the control is the comparison to read. MACL (chosen without reweighting), learned τ and
TempNet (its τ had no spread) give what InfoNCE gives at their mean τ, to 0.1 points: a τ that is
one number for the batch acted by its level alone.
The cosine schedule lies 1.3 below its control. What lies above it by a point or more is what
changes the gradient's shares: a τ per pair (DySTreSS, +2.1, shown), a sigmoid per pair (SigLIP,
+2.9), and the losses without W (DCL +1.2, FastCLIP v3 +1.1); the last three are not shown with
three seeds. Against InfoNCE at its best of all these levels SigLIP, DCL, FastCLIP v3 and DySTreSS
are ahead by 2.5, 0.8, 0.7 and 0.6. Positives have a similarity of about 0.87 here, where the slope
of 2·artanh is 8: Temperature-free destroys what the encoder had learnt.""",
}
"""What has to be known to read a task's tables; by hand."""

HEAD = """# Temperature methods since 2023, beside NT-Xent

Made on {date} with {versions}.

    python benchmarks/temperature_study.py --tasks digits,cifar10 --data DATA
    python benchmarks/mlm.py DATA/text/wiki100k-mlm.txt mlm --limit 100000 --width 128 --layers 3
    python benchmarks/temperature_study.py --tasks sentences --data DATA --encoder mlm
    python benchmarks/temperature_study.py --write

The methods are described in [losses.md](../losses.md).

**How it was done.** Each method has three candidate settings around its published defaults
(`benchmarks/temperature_settings.py`; Temperature-free has nothing to choose). They run with seed 0
and are judged on a validation part of the training data (sentences: on STS-B dev, after training on
8,000 of them). The best one
runs with all seeds on the whole training data and is judged on the test data. *Control* is NT-Xent
with τ fixed at the mean τ that the method had in its trainings, or InfoNCE where the method
contrasts with the other view alone; for DySTreSS that is the mean τ of the positive pairs. A method
that is ahead of the baseline and not of its control owes its lead to the level of τ. SupCon uses
the labels of the training data: it is shown, and not tested against the others. Tests are on the
first score alone, as each further one would weaken all of them.

Every finished training is a line of `docs/results/data/temperatures-TASK.jsonl`, from which the
study goes on. W̄ and effective anchors are means over the last epoch.
"""


def level_text(found: list[Line]) -> str:
    """The mean τ over all steps and seeds."""
    levels = [line.temperature for line in found if line.temperature is not None]
    return f"{mean_std(levels)[0]:.3f}" if levels else EMPTY


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
    """The finished trials of a task, as rows with differences."""

    def __init__(self, lines: Lines, name: str) -> None:
        self.name, self.task, self.lines = name, TASKS[name], lines
        self.methods = methods(self.task)
        self.chosen = {
            method: setting
            for method, own in self.methods.items()
            if (setting := chosen(lines, name, own)) is not None
        }
        self.baseline = next(iter(self.methods))
        self.rows = correct([*self._rows()])

    def of(self, label: str) -> list[Line]:
        """The finished lines of a method or of its control, by seed."""
        keys = ((self.name, label, seed) for seed in range(self.task.seeds))
        return [self.lines.by_key[key] for key in keys if key in self.lines.by_key]

    def _rows(self) -> Iterator[Row]:
        for method in self.methods:
            for score in self.task.scores:
                own = by_seed(self.of(method), score)
                if own:
                    mean, std = mean_std([*own.values()])
                    base = by_seed(self.of(self.baseline), score)
                    fixed = by_seed(self.of(CONTROL.format(method)), score)
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
                        difference(own, base) if compared else None,
                        to_control=difference(own, fixed) if compared else None,
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
            rows = self.of(method)
            if rows:
                values = [texts.get((method, score), EMPTY) for score in self.task.scores]
                control = by_seed(self.of(CONTROL.format(method)), self.task.scores[0])
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
        count = len(self.of(method))
        if count < self.task.seeds:
            yield f"{method}: {count} of {self.task.seeds} seeds."
        if own.has_level and method != self.baseline:
            count = len(self.of(CONTROL.format(method)))
            if count < self.task.seeds:
                yield f"{method}, control: {count} of {self.task.seeds} seeds."


def by_seed(found: list[Line], score: str) -> dict[int, float]:
    """A score by seed."""
    return {line.seed: line.scores[score] for line in found}


def difference(own: dict[int, float], other: dict[int, float]) -> Difference | None:
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    return paired_difference([own[seed] for seed in shared], [other[seed] for seed in shared])


def figure(found: list[Line], name: str) -> str:
    """A figure of the last epoch, averaged over seeds."""
    values = [line.training[name] for line in found if name in line.training]
    return f"{mean_std(values)[0]:.3f}" if values else EMPTY


def write() -> None:
    """Write the page."""
    known = {name: lines_of(name) for name in TASKS}
    ran = {name: lines for name, lines in known.items() if lines.by_key}
    if not ran:
        raise SystemExit("no task has lines: run the study first.")
    versions = ", ".join(sorted({line.version for lines in ran.values() for line in lines}))
    head = HEAD.format(date=datetime.date.today().isoformat(), versions=versions)
    sections = []
    for name, lines in ran.items():
        sections.append(TaskResults(lines, name).markdown())
        if name in REMARKS:
            sections.append(REMARKS[name])
    missing = [TITLES[name] for name in TASKS if name not in ran]
    if missing:
        sections.append(f"Not run at all: {', '.join(missing)}.")
    PAGE.write_text("\n\n".join([head.strip(), *sections]) + "\n", encoding="utf-8")
    print(PAGE)
