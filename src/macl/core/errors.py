"""Mistakes in the input, told in words. Nothing heavy is imported here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input, in words: what is wrong and what to do. Shown without traceback."""


class SkippedInputWarning(UserWarning):
    """Part of the input was passed over, in words. Commands show it without file and line."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """' Did you mean 'x'?' when something close exists, then the whole list of valid names."""
    choices = sorted(valid)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Valid names: {', '.join(choices)}."


class PluginWarning(UserWarning):
    """A plug-in of another package was left out. Commands show it without file and line."""
