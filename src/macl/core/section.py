"""Base class of every recipe section: strict keys, immutable values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
"""A path that stays right wherever the program is started from later."""


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
