"""Base class of every recipe section: strict keys, immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from macl.core.remote import url_of


def absolute(path: Path) -> Path:
    """The path from the root, a URL as it is; ~/… is below the home folder, a bare ~ a file."""
    if url_of(path) is not None:
        return path
    return (path.expanduser() if str(path).startswith("~/") else path).absolute()


AbsolutePath = Annotated[Path, AfterValidator(absolute)]
"""A path that stays right wherever the program is started from later."""


class Section(BaseModel):
    """One section of a recipe. Unknown keys are rejected; values are immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    renamed: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions → what they are called now, for the message that rejects them."""

    user_only: ClassVar[frozenset[str]] = frozenset()
    """Keys that permit a download or say where to write: set in the call, ignored in files."""

    def check_files(self) -> None:
        """Raise `UserError` for mistakes in its files that are seen at once, without torch."""

    @classmethod
    def keep_for_name(cls, name: str, kept: dict[str, Any]) -> dict[str, Any]:
        """Which values still apply to another `name`: all but the permission to import."""
        return {key: value for key, value in kept.items() if key != "allow_import"}
