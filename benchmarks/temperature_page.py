"""docs/results/temperatures.md from the lines of the temperature study."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from macl.experiments.rows import Row, correct
from macl.experiments.statistics import MARGIN, mean_std
from macl.experiments.tables import EMPTY, RowText, correction, markdown_table
from study import Line, Lines
from study_tables import paired, untested
from temperature_settings import TASKS, Method, Setting, control, control_level, methods
from temperature_study import CONTROL, chosen, lines_of, text

PAGE = Path(__file__).parents[1] / "docs/results/temperatures.md"

TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10 at laptop scale",
    "sentences": "Sentences",
}

ITEMS = {"digits": 360, "cifar10": 2500}
"""Of the test sets."""

REMARKS = {
    "cifar10": """A small set-up (2,500 pictures, ten epochs): W̄ is 0.8 to 0.97, so W hardly
acts. All methods but Temperature-free (1.9 below, not shown) lie within 0.8 points of NT-Xent and
within 0.6 of their controls. What moved results is the level: the controls, all of them NT-Xent
or InfoNCE, fall from 35.8 at τ = 0.10 to 33.7 at 0.55. The cosine schedule from 0.1 to 1 was
first compared with 0.55, its arithmetic mean, and lay 1.9 above it; its level is 0.316, and it
lies 0.6 above 0.34.""",
    "sentences": """The baseline's τ was chosen on STS-B dev after a short training, which
preferred 0.1. On the test tasks after the whole training InfoNCE is better at a lower τ: it ran
at eleven levels, from 45.05 at τ = 0.149 over 48.40 at 0.088 to 49.30 at 0.063 and 48.83 at 0.050
(`benchmarks/evidence.py`). So the control is the comparison to read.

*τ hardly moved.* MACL, learned τ, FastCLIP v3 and TempNet had 1.00 times their mean τ in the last
epoch: the rules as they are parametrized barely adapt here, and that they equal their level says
little of adapting. The one that moved it, fourfold and with a period of 62 steps, is the cosine
schedule, and it did not equal its level: −0.8 [−1.5, −0.1] to InfoNCE at 0.05 (not shown).

*DySTreSS.* An earlier version of this page had it "ahead of its control by 2.1, shown". That
control sat at the τ of the positives (0.098), while negatives of a similarity between 0 and 0.4
had 0.050 to 0.067; the claim is withdrawn. Against InfoNCE at 0.063 it is +0.6 [−0.7, +1.8], and
it lies 0.2 below DCL at 0.05. Its published sentence setting, [0.04, 0.05], was not among the
candidates; it is now, and has not run.

What lies above its control by a point or more: SigLIP (+2.9), DCL (+1.2), FastCLIP v3 (+1.1);
none is shown with three seeds. Positives have a similarity of about 0.87 here, where the slope of
2·artanh is 8: Temperature-free destroys what the encoder had learnt. All seeds start from one
encoder and see the same sentences: intervals cover the order of the batches and dropout, not
another encoder or text.""",
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
(`benchmarks/temperature_settings.py`; Temperature-free has nothing to choose). They run with seed
0 and are judged on a validation part of the training data (sentences: on STS-B dev, after
training on 8,000 of them). The best one runs with all seeds on the whole training data and is
judged on the test data. *Control* is NT-Xent, or InfoNCE where the method contrasts with the
other view alone, with τ fixed at the level that the method had. The level of a varying τ is its
**harmonic mean**, as 1/τ is what scales the logits: √(ab) for a cosine between a and b. Of a τ
per pair it is that of the negatives (DySTreSS: at a similarity of ¼). Where no run is at that
level, the fixed τ nearest to it stands for it; "control's τ" says which. For methods whose τ
drifts, the older lines have the arithmetic mean, which differs by less than 2%. A method that is
ahead of the baseline and not of its control owes its lead to the level of τ. *Last / mean* says
how far τ moved: its mean in the last epoch over that of the training. SupCon uses the labels of
the training data: it is shown, and not tested against the others. There is one planned comparison
for each method, on the first score: to its control, or to the baseline where it has none. Lines
that are the same run under two names are one row.

Every finished training is a line of `docs/results/data/temperatures-TASK.jsonl`, from which the
study goes on. W̄ and effective anchors are means over the last epoch.
"""


CLOSE = 0.03
"""A control whose τ is further than this (in log τ) from the method's level is not its control."""


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
        self.controls = {method: self._control(method) for method in self.methods}
        self.rows = self._corrected([*self._rows()])

    def of(self, label: str) -> list[Line]:
        """The finished lines of a method or of its control, by seed."""
        keys = ((self.name, label, seed) for seed in range(self.task.seeds))
        return [self.lines.by_key[key] for key in keys if key in self.lines.by_key]

    def _control(self, method: str) -> list[Line]:
        """The lines with τ fixed nearest the level that the method had."""
        own = self.of(method)
        levels = [line.temperature for line in own if line.temperature is not None]
        if method == self.baseline or not self.methods[method].has_level or not levels:
            return []
        setting = self.chosen[method]
        level = control_level(setting, mean_std(levels)[0])
        form = control(setting, level)["name"]
        fixed = [
            self.of(CONTROL.format(other))
            for other in self.methods
            if other in self.chosen and control(self.chosen[other], 1.0)["name"] == form
        ]
        own_control = self.of(CONTROL.format(method))
        if form == self.task.reference:
            fixed.append(self.of(self.baseline))
        known = [own_control, *fixed]
        return min(filter(None, known), key=lambda lines: distance(lines, level), default=[])

    def _corrected(self, rows: list[Row]) -> list[Row]:
        """One family, a comparison for each method: to its control, or without one the baseline.

        The other differences to the baseline are shown without a verdict; where the baseline is the
        control, they are one row.
        """
        base = [line.recipe for line in self.of(self.baseline)]
        planned, shown = [], []
        for row in rows:
            fixed = [line.recipe for line in self.controls[row.setting["method"]]]
            planned.append(replace(row, difference=None) if row.to_control else row)
            other = None if fixed == base else row.difference
            shown.append(untested(other) if other and row.to_control else None)
        return [
            replace(row, difference=row.difference or other)
            for row, other in zip(correct(planned), shown, strict=True)
        ]

    def _rows(self) -> Iterator[Row]:
        for method in self.methods:
            for score in self.task.scores:
                own = by_seed(self.of(method), score)
                if own:
                    mean, std = mean_std([*own.values()])
                    base = by_seed(self.of(self.baseline), score)
                    fixed = by_seed(self.controls[method], score)
                    item = 100 / ITEMS[self.name] if self.name in ITEMS else 0.0
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
                        paired(own, base, item) if compared else None,
                        to_control=paired(own, fixed, item) if compared else None,
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
                fixed = self.controls[method]
                control = by_seed(fixed, self.task.scores[0])
                lines.append(
                    [
                        self._label(method),
                        setting_text(setting),
                        *values,
                        "{:.2f} ± {:.2f}".format(*mean_std([*control.values()]))
                        if control
                        else EMPTY,
                        level_text(fixed),
                        level_text(rows),
                        moved_text(rows),
                        figure(rows, "temperature_std"),
                        figure(rows, "gradient_scale"),
                        figure(rows, "effective_anchors"),
                    ]
                )
        header = ["", "chosen", *self.task.scores, f"control's {self.task.scores[0]}"]
        header += ["control's τ", "mean τ", "last / mean", "std of τ", "W̄", "effective anchors"]
        return markdown_table(header, lines)

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
                            text.detectable if found.p == found.p else EMPTY,
                            text.verdict if found.p == found.p else "not tested",
                        ]
                    )
        header = ["", "score", "to", "difference", "95% interval", "detectable", "verdict"]
        return f"Baseline: {self.baseline}.\n\n" + markdown_table(header, lines) if lines else ""

    def _verdict(self) -> str:
        """What the table shows and what it does not, in a sentence."""
        ahead: dict[str, list[str]] = {"ahead": [], "behind": [], f"equal within ±{MARGIN:g}": []}
        joint = {"ahead": "of", "behind": "of"}
        for row in self.rows:
            for to, found in (("the baseline", row.difference), ("its control", row.to_control)):
                if found is not None and found.verdict in ahead:
                    label = self._label(row.setting["method"])
                    joint_word = joint.get(found.verdict, "to")
                    ahead[found.verdict].append(f"{label} {joint_word} {to}")
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
                else "**No difference is shown** for any method, and none is shown to be equal."
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
            measured = [line.temperature for line in self.of(method) if line.temperature]
            level = control_level(self.chosen[method], mean_std(measured)[0]) if measured else 0.0
            far = distance(self.controls[method], level) if self.controls[method] else 1.0
            if far > CLOSE:
                yield f"{method}: a control at its level, τ = {level:.3f}; the nearest stands in."
        ran = {label for regime, label, _ in self.lines.by_key if regime != self.name}
        for setting in own.candidates if len(own.candidates) > 1 else ():
            if text(setting) not in ran:
                yield f"{method}: the candidate {setting_text(setting)}, added after the runs."


def distance(found: list[Line], level: float) -> float:
    """How far the fixed τ of lines lies from a level, in log τ."""
    levels = [line.temperature for line in found if line.temperature is not None]
    return abs(math.log(mean_std(levels)[0] / level))


def moved_text(found: list[Line]) -> str:
    """The mean τ of the last epoch over that of the whole training."""
    shares = [line.training["temperature"] / line.temperature for line in found if line.temperature]
    return f"{mean_std(shares)[0]:.2f}" if shares else EMPTY


def by_seed(found: list[Line], score: str) -> dict[int, float]:
    """A score by seed."""
    return {line.seed: line.scores[score] for line in found}


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
