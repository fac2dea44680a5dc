"""Errors and warnings that are shown to users. Imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
