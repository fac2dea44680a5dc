"""`macl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import MovedData
from macl.cli.console import escaped, message, on_terminal
from macl.reporting import Projection


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|COMPARISON...",
            help="A folder of `macl train` or `macl compare`, or several run folders.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The page to write. Default: report.html in the folder, or in the current one for "
            "several runs.",
        ),
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=2, help="Largest number of items on the map. Default: 2000.")
    ] = None,
    data: MovedData = None,
    projection: Annotated[
        Projection | None,
        typer.Option(
            help="How the map reduces embeddings to two dimensions. Default: pca below 1,000 "
            "items, else umap if it is installed."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure as PNG and PDF into this folder.")
    ] = None,
) -> None:
    """Write one self-contained page: curves, results, a map of embeddings and the diagnosis."""
    from macl import api

    files = api.report(
        sources,
        output,
        points=points,
        data=data,
        projection=projection,
        figures=figures,
        progress=on_terminal(),
    )
    for file in files:
        message(f"written: {escaped(str(file))}")
