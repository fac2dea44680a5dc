"""`macl report`: read runs, draw, write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.reporting import Projection
from macl.reporting.comparison import is_comparison, open_comparison
from macl.reporting.crossing import cross
from macl.reporting.curves import Chart, comparison_charts, run_charts
from macl.reporting.figures import write_figures
from macl.reporting.histogram import temperature_histogram
from macl.reporting.items import looks
from macl.reporting.map import embedding_map
from macl.reporting.page import Picture, comparison_page, run_page, runs_page
from macl.runs import Run

POINTS = 2000
"""Items on the map by default."""


def write_report(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    points: int | None = None,
    data: Path | None = None,
    projection: Projection | None = None,
    figures: Path | None = None,
) -> list[Path]:
    """Write the page of a run, of several runs or of a comparison.

    Args:
        sources: the folder of a run or of a comparison, or the folders of several runs, whose
            curves share their axes.
        output: the page, a name that ends in .html.
        points: the largest number of items on the map; 2000 by default.
        data: the run's data, when it moved. Without it, data that cannot be read leaves the page
            without a map, and the page states why; with it, the mistake is an error.
        projection: of the map; see `map.default_projection`.
        figures: a folder for every figure as PNG and PDF.

    Returns:
        The files written, the page first.
    """
    folders = [sources] if isinstance(sources, Path) else list(sources)
    if not folders:
        raise UserError("a report needs the folder of a run or of a comparison.")
    if output.suffix != ".html":
        raise UserError(f"{output}: a report is a page; give a name that ends in .html.")
    if data is not None and not data.exists():
        raise UserError(f"--data {data}: there is no such file or folder.")
    compared = [folder for folder in folders if _is_comparison(folder)]
    if (compared or len(folders) > 1) and (points, data, projection) != (None, None, None):
        what = f"{compared[0]} is a comparison" if compared else "these are several runs"
        raise UserError(
            f"{what}, whose page has no map: --points, --data and --projection are for one run."
        )
    if compared and len(folders) > 1:
        raise UserError(
            f"{compared[0]} is a comparison: give it alone, or give the folders of several runs."
        )
    if compared:
        page, extra = _report_comparison(folders[0], figures)
    elif len(folders) > 1:
        page, extra = _report_runs(folders, figures)
    else:
        page, extra = _report_run(folders[0], points or POINTS, projection, data, figures)
    atomic_write(output, lambda file: file.write(page.encode()))
    return [output, *extra]


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that distinguish the folders."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"the run {folders[0]} is given twice.")


def _is_comparison(folder: Path) -> bool:
    return not (folder / "recipe.yaml").is_file() and is_comparison(folder)


def _report_comparison(folder: Path, figures: Path | None) -> tuple[str, list[Path]]:
    found = open_comparison(folder)
    charts = comparison_charts(found.settings)
    files = [] if figures is None else write_figures(figures, charts, scores=found.metrics)
    return comparison_page(found, charts), files


def _report_runs(folders: Sequence[Path], figures: Path | None) -> tuple[str, list[Path]]:
    runs = dict(zip(run_names(folders), map(Run.open, folders), strict=True))
    charts = comparison_charts({name: [run] for name, run in runs.items()})
    files = [] if figures is None else write_figures(figures, charts)
    return runs_page(runs, charts), files


def _report_run(
    folder: Path,
    points: int,
    projection: Projection | None,
    data: Path | None,
    figures: Path | None,
) -> tuple[str, list[Path]]:
    run = Run.open(folder)
    charts: list[Chart] = run_charts(run)
    if (spread := temperature_histogram(run)) is not None:
        charts.append(spread)
    picture, missing = _picture(run, points, projection, data)
    shown = None if picture is None else picture.map
    files = [] if figures is None else write_figures(figures, charts, shown)
    crossing = None if shown is None else cross(run, shown)
    return run_page(run, charts, picture, missing, crossing), files


def _picture(
    run: Run, points: int, projection: Projection | None, data: Path | None
) -> tuple[Picture | None, str]:
    """The map, or the reason why there is none."""
    try:
        found = embedding_map(run, points, projection, data)
        return Picture(found, looks(run.modality, found)), ""
    except UserError as error:
        if data is not None:
            raise
        return None, str(error)
