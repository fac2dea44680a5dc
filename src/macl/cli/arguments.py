"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="A run folder, as made by `macl train`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Overrides of the recipe, such as loss=dcl loss.temperature=0.2 epochs=20.",
    ),
]
DataOption = Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")]
MovedData = Annotated[
    Path | None, typer.Option(help="Where the run's data is now, if it was moved.")
]


def stored_recipe(folder: Path) -> str | None:
    """The recipe file of a run folder; None where there is none."""
    file = folder / "recipe.yaml"
    return str(file) if file.is_file() else None
