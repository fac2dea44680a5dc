"""What every section of a recipe shares: strict keys, plain values, errors that name the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class UserError(Exception):
    """A mistake in the input, in words: what is wrong and what to do. Shown without traceback."""


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def nearest(name: str, valid: Iterable[str]) -> str:
    """' Did you mean 'x'?' when something close exists, then the whole list of valid names."""
    choices = sorted(valid)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Valid names: {', '.join(choices)}."
