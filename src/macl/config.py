"""What every section of a recipe shares: strict keys, plain values, errors that name the remedy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from macl.errors import UserError, nearest

__all__ = ["Section", "UserError", "nearest"]


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
