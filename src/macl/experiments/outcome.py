"""What a comparison returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from macl.core.errors import UserError
from macl.experiments.rows import Row


class CellsFailed(UserError):
    """Some cells failed; all others are finished."""


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison."""

    rows: list[Row]
    files: list[Path]
    """The tables that were written."""
    failure: CellsFailed | None
    """Which runs failed and why, where the others give a table; None: none failed."""
