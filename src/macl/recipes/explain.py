"""Validation errors as sentences that name the recipe's key."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from macl.recipes.keys import unknown_key, walk


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for each problem, with the key as a user writes it."""
    lines = []
    for problem in error.errors():
        *above, last = problem["loc"] or ("recipe",)
        if problem["type"] == "extra_forbidden":
            keys, models = walk(model, above)
            lines.append(unknown_key(".".join([*keys, str(last)]), str(last), models))
            continue
        key = ".".join(walk(model, problem["loc"])[0])
        if problem["type"] == "missing":
            lines.append(f"{key} is missing.")
        else:
            lines.append(f"{key}: {problem['msg']} (got {problem.get('input')!r}).")
    return "the recipe is not valid:\n  " + "\n  ".join(dict.fromkeys(lines))
