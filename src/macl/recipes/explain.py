"""Validation errors as sentences that name the recipe's key."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from macl.core.errors import nearest
from macl.recipes.keys import renamed_key, walk


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for each problem, with the key as a user writes it."""
    lines = []
    for problem in error.errors():
        *above, last = problem["loc"] or ("recipe",)
        keys, kinds = walk(model, above)
        if problem["type"] == "extra_forbidden":
            now = renamed_key(kinds, str(last))
            if now is not None:
                here = ".".join([*keys, ""])
                lines.append(f"{here}{last} is now called {here}{now}.")
                continue
            fields = {name for kind in kinds for name in kind.model_fields}
            lines.append(
                f"unknown key {'.'.join([*keys, str(last)])!r}.{nearest(str(last), fields)}"
            )
            continue
        key = ".".join(walk(model, problem["loc"])[0])
        if problem["type"] == "missing":
            lines.append(f"{key} is missing.")
        else:
            lines.append(f"{key}: {problem['msg']} (got {problem.get('input')!r}).")
    return "the recipe is not valid:\n  " + "\n  ".join(dict.fromkeys(lines))
