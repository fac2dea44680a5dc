"""Base class of every recipe section: strict keys, immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict

AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
"""A path made absolute when it is read, so that it stays valid in any working folder."""


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former name of a key → its name now. A former name is rejected with the new one."""
