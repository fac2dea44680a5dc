"""Tables of a study's lines: mean ± std over seeds, paired differences, verdicts, pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from macl.experiments.rows import adjust
from macl.experiments.statistics import Difference, mean_std, paired_difference
from macl.experiments.tables import interval_text, signed
from study import Line, Lines

Metric = Callable[[Line], float]


@dataclass(frozen=True)
class Entry:
    """One label of one regime over its seeds."""

    regime: str
    label: str
    values: dict[int, float]
    """By seed."""
    difference: Difference | None = None
    """To the baseline, paired by seed."""
    to_control: Difference | None = None
    """To the level control, paired by seed."""

    @property
    def text(self) -> str:
        """Mean ± standard deviation (seeds)."""
        mean, std = mean_std([*self.values.values()])
        return f"{mean:.2f} ± {std:.2f}" if len(self.values) > 1 else f"{mean:.2f}"


def entries(
    lines: Lines,
    regime: str,
    labels: Sequence[str],
    metric: Metric,
    baseline: str,
    control: Callable[[str], str] = "{}, level control".format,
    items: int = 0,
) -> list[Entry]:
    """The labels of a regime that have lines, compared with the baseline and their controls.

    `items` is the size of the test set of an accuracy: no spread is taken for less than one item.
    """
    resolution = 100 / items if items else 0.0
    values = {
        label: {
            line.seed: metric(line)
            for line in sorted(lines, key=lambda line: line.seed)
            if (line.regime, line.label) == (regime, label)
        }
        for label in labels
    }
    found = []
    for label in labels:
        if not values[label]:
            continue
        base = None
        if label != baseline:
            base = paired(values[label], values.get(baseline, {}), resolution)
        fixed = paired(values[label], values.get(control(label), {}), resolution)
        found.append(Entry(regime, label, values[label], base, fixed))
    return found


Families = Callable[[Entry], tuple[str | None, str | None]]
"""The families of planned comparisons that an entry's two differences belong to; None: neither
planned nor tested, so it is shown without a verdict."""


def corrected(
    found: Iterable[Entry], families: Families = lambda entry: ("all", "all")
) -> list[Entry]:
    """Entries with verdicts corrected by Holm within each family."""
    found = list(found)
    places = [
        (number, name, family, difference)
        for number, entry in enumerate(found)
        for name, family, difference in zip(
            ("difference", "to_control"),
            families(entry),
            (entry.difference, entry.to_control),
            strict=True,
        )
        if difference is not None
    ]
    for family in {place[2] for place in places}:
        own = [place for place in places if place[2] == family]
        tested = (
            [untested(place[3]) for place in own]
            if family is None
            else adjust([place[3] for place in own])
        )
        for (number, name, _, _), difference in zip(own, tested, strict=True):
            found[number] = replace(found[number], **{name: difference})
    return found


def untested(found: Difference) -> Difference:
    """The difference and its interval, without a verdict."""
    return replace(found, p=math.nan, equal=math.nan)


def difference_text(found: Difference | None) -> str:
    """ "+0.43 [+0.24, +0.61]"; bold where a difference is shown, "=" where it is shown to be small.

    "–" where there is none.
    """
    if found is None:
        return "–"
    text = f"{signed(found.mean)} {interval_text(found)}".rstrip()
    if found.verdict in ("ahead", "behind"):
        return f"**{text}**"
    return f"{text} =" if found.verdict.startswith("equal") else text


def replace_part(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no part {name!r}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def paired(
    own: dict[int, float], other: dict[int, float], resolution: float = 0.0
) -> Difference | None:
    """The difference over the seeds that both have; None where they share none."""
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    values, base = [own[seed] for seed in shared], [other[seed] for seed in shared]
    return paired_difference(values, base, resolution)
