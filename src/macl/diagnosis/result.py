"""The result of a diagnosis: findings with their evidence, and advice with its reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "watch", "problem"]


@dataclass(frozen=True)
class Finding:
    """One finding, with or without a problem."""

    name: str
    """ "gradient reduction", "uniformity", "hard negatives", "temperature" or "collapse"; where the
    loss has something to state about its own settings, also "settings of the loss"."""
    verdict: Verdict
    words: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it."""


@dataclass(frozen=True)
class Advice:
    """One change to make, and why."""

    change: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Findings, advice, and notes on what was measured. `print` it, or take `as_dict()`."""

    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The diagnosis in one line."""
        named = [
            f"{verdict}: {', '.join(names)}"
            for verdict in ("problem", "watch")
            if (names := [f.name for f in self.findings if f.verdict == verdict])
        ]
        return f"{'; '.join(named) or 'ok: nothing calls for a change'}."

    @property
    def problems(self) -> tuple[str, ...]:
        """The names of the findings that are problems."""
        return tuple(f.name for f in self.findings if f.verdict == "problem")

    def __getitem__(self, name: str) -> Finding:
        return {finding.name: finding for finding in self.findings}[name]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self.verdict, *self.notes, ""]
        lines += [f"{f.name} [{f.verdict}]: {f.words}" for f in self.findings]
        lines += ["", "Advice:" if self.advice else "Advice: none; nothing calls for a change."]
        lines += [f"- {a.change} {a.reason}" for a in self.advice]
        return "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in lines)
