"""Base class of every recipe section: strict keys, immutable values."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
