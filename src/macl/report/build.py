"""`macl report`: read, draw, write."""

from __future__ import annotations

from pathlib import Path

from macl.core.errors import UserError
from macl.core.files import write_atomically
from macl.report import Projection
from macl.report.comparison import is_comparison, open_comparison
from macl.report.curves import comparison_charts, run_charts
from macl.report.figures import write_figures
from macl.report.items import looks
from macl.report.map import default_projection, embedding_map
from macl.report.page import Picture, comparison_page, run_page
from macl.runs import Run

POINTS = 2000
"""Items on the map unless told otherwise."""


def write_report(
    source: Path,
    output: Path,
    *,
    points: int | None = None,
    data: Path | None = None,
    projection: Projection | None = None,
    figures: Path | None = None,
) -> list[Path]:
    """Write the page of a run or of a comparison; returns the files written, the page first.

    Args:
        source: the folder of a run or of a comparison.
        output: the page, a name that ends in .html.
        points: the most items on the map; 2000 unless told otherwise.
        data: the run's data, when it moved. Without it, data that cannot be read costs the page its
            map, and the page says so; with it, the mistake is an error.
        projection: of the map; by default UMAP where it is installed, else PCA.
        figures: a folder for every figure as PNG and PDF.
    """
    if output.suffix != ".html":
        raise UserError(f"{output}: a report is a page; give a name that ends in .html.")
    if data is not None and not data.exists():
        raise UserError(f"--data {data}: there is no such file or folder.")
    if not (source / "recipe.yaml").is_file() and is_comparison(source):
        if (points, data, projection) != (None, None, None):
            raise UserError(
                f"{source} is a comparison, whose page has no map: --points, --data and "
                "--projection are for a run."
            )
        found = open_comparison(source)
        charts = comparison_charts(found.settings)
        page = comparison_page(found, charts)
        extra = [] if figures is None else write_figures(figures, charts, scores=found.metrics)
    else:
        run = Run.open(source)
        charts = run_charts(run)
        picture, missing = _picture(run, points or POINTS, projection or default_projection(), data)
        page = run_page(run, charts, picture, missing)
        shown = None if picture is None else picture.map
        extra = [] if figures is None else write_figures(figures, charts, shown)
    write_atomically(output, lambda file: file.write(page.encode()))
    return [output, *extra]


def _picture(
    run: Run, points: int, projection: Projection, data: Path | None
) -> tuple[Picture | None, str]:
    """The map, or why there is none."""
    try:
        found = embedding_map(run, points, projection, data)
        return Picture(found, looks(run.modality, found)), ""
    except UserError as error:
        if data is not None:
            raise
        return None, str(error)
