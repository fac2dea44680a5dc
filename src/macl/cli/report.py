"""A page to look at: `macl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.cli.console import escaped, tell
from macl.report import Projection


def report(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|COMPARISON", help="A folder of `macl train` or compare.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=2, help="The most items on the map. Default: 2000.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the run's data is now, if it moved.")
    ] = None,
    projection: Annotated[
        Projection | None,
        typer.Option(help="Of the map. Default: umap where it is installed, else pca."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Every figure as PNG and PDF into this folder.")
    ] = None,
) -> None:
    """Make one self-contained page: curves, results, a map of embeddings, neighbours, diagnosis."""
    from macl.report.build import write_report

    files = write_report(
        source,
        output or source / "report.html",
        points=points,
        data=data,
        projection=projection,
        figures=figures,
    )
    for file in files:
        tell(f"written: {escaped(str(file))}")
