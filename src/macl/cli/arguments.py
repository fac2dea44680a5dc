"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.core.errors import UserError

RunArgument = Annotated[Path, typer.Argument(help="A run folder, as made by `macl train`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as loss=dcl epochs=20."),
]


def data_override(data: Path | None, key: str = "data.path") -> list[str]:
    """`--data PATH` as the override that it stands for."""
    if data is None:
        return []
    if not data.exists():
        raise UserError(f"--data {data}: there is no such file or folder.")
    return [f"{key}={data.resolve()}"]
