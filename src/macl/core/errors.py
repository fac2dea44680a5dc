"""Errors and warnings that are shown to users; broken input is counted. Imports nothing heavy."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

OnError = Literal["fail", "skip", "skip-few"]
"""What to do about broken input: fail on the first, skip all, or skip up to 1% and fail above."""

FEW = 0.01
"""Fraction of the items that may be broken with on_error=skip-few."""

REPORTED = 10
"""How many broken items an error lists before it only counts them."""


class UserError(Exception):
    """A mistake in the input: what is wrong, where, how to fix it. Shown without traceback."""


class SkippedInputWarning(UserWarning):
    """Part of the input, or a plug-in, was skipped. Commands show it without file and line."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """' Did you mean 'x'?' when something close exists, then the whole list of valid names."""
    choices = sorted(valid)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Valid names: {', '.join(choices)}."


def report_broken(broken: Sequence[str], total: int, what: str, on_error: OnError) -> None:
    """Warn about broken input, or raise `UserError` where it is more than `on_error` allows.

    `broken` has a line for each broken one of `total` items ("image files" is `what`).
    """
    if not broken:
        return
    count = len(broken)
    more = count - REPORTED
    listing = "\n  ".join([*broken[:REPORTED], *([f"and {more} more"] * (more > 0))])
    problem = f"{count} of {total} {what} cannot be used:\n  {listing}\n"
    if on_error == "fail" or (on_error == "skip-few" and count > FEW * total):
        limit = "" if on_error == "fail" else f"At most {FEW:.0%} may be skipped. "
        raise UserError(f"{problem}{limit}Remove them, or skip all with data.on_error=skip.")
    warnings.warn(
        f"{problem}They are skipped (data.on_error={on_error}).", SkippedInputWarning, stacklevel=3
    )
