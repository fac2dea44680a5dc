"""What a run shows: `macl diagnose`, and the page of `macl report`."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from macl.cli import arguments
from macl.cli.arguments import existing, placed
from macl.cli.console import message, table, written
from macl.core.shown import shown
from macl.reporting import Projection


def diagnose(
    run: arguments.Run,
    data: arguments.MovedData = None,
    items: int = Option(1024, min=2, help="Training items to encode, in whole batches."),
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """Report whether a run suffers from either dilemma or collapse, and what to change."""
    from macl import api, recipes

    recipes.require_run(run)  # before torch is imported
    where = placed(device, precision)
    diagnosis = api.diagnose(run, data=data, items=items, progress=True, **where)
    print(shown(diagnosis.verdict))
    for note in diagnosis.notes:
        message(note)
    findings = [(f.name, f.verdict, f.words) for f in diagnosis.findings]
    table(f"Diagnosis of {run}", ("finding", "verdict", "explanation"), findings)
    if diagnosis.advice:
        table("Advice", ("change", "because"), [(a.change, a.reason) for a in diagnosis.advice])
    written(run / "diagnosis.json")


def report(
    sources: list[Path] = Argument(
        metavar="RUN|COMPARISON...", help="A folder of `macl train` or `compare`, or several runs."
    ),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="The page to write. Default: report.html in the folder, or in the current one for "
        "several runs.",
    ),
    points: int | None = Option(None, min=2, help="Most items on the map. Default: 2000."),
    data: arguments.MovedData = None,
    projection: Projection | None = Option(
        None,
        help="How the map reduces embeddings to two dimensions. Default: pca below 1,000 items, "
        "else umap if it is installed.",
    ),
    figures: Path | None = Option(None, help="Also write figures as PNG and PDF into this folder."),
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    paths: bool = Option(False, "--paths", help="Keep the paths of this machine in the page."),
) -> None:
    """Write one self-contained page: curves, results, a map of embeddings and the diagnosis."""
    for source in sources:
        existing(source)

    from macl import api

    files = api.report(
        sources,
        output,
        points=points,
        data=data,
        projection=projection,
        figures=figures,
        paths=paths,
        progress=True,
        **placed(device, precision),
    )
    written(*files)
