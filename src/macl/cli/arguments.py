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
        help="Values of the recipe to change, such as loss=dcl loss.temperature=0.2 epochs=20; "
        "`macl recipes NAME` shows a recipe.",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option(help="Your data: a file or a folder. Sets data.path.")
]
MovedData = Annotated[
    Path | None, typer.Option(help="Where the run's training data is now, if it was moved.")
]


def stored_recipe(folder: Path) -> str | None:
    """The recipe file of a run folder; None where there is none."""
    file = folder / "recipe.yaml"
    return str(file) if file.is_file() else None
