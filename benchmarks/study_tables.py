"""Tables of a study's lines: mean ± std over seeds, paired differences, verdicts, pools."""

from __future__ import annotations

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
) -> list[Entry]:
    """The labels of a regime that have lines, compared with the baseline and their controls."""
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
        base = None if label == baseline else _paired(values[label], values.get(baseline, {}))
        fixed = _paired(values[label], values.get(control(label), {}))
        found.append(Entry(regime, label, values[label], base, fixed))
    return found


def corrected(found: Iterable[Entry]) -> list[Entry]:
    """Entries with verdicts corrected by Holm, as one family."""
    found = list(found)
    tested = [d for e in found for d in (e.difference, e.to_control) if d is not None]
    adjusted = iter(adjust(tested))
    return [
        replace(
            e,
            difference=e.difference and next(adjusted),
            to_control=e.to_control and next(adjusted),
        )
        for e in found
    ]


def difference_text(found: Difference | None) -> str:
    """ "+0.43 [+0.24, +0.61]"; bold where a difference is shown; "–" where there is none."""
    if found is None:
        return "–"
    if found.pairs < 2:
        return signed(found.mean)
    text = f"{signed(found.mean)} {interval_text(found)}"
    return f"**{text}**" if found.verdict in ("ahead", "behind") else text


def replace_part(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no part {name!r}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def _paired(own: dict[int, float], other: dict[int, float]) -> Difference | None:
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    return paired_difference([own[s] for s in shared], [other[s] for s in shared])
