"""`macl report`: read runs, draw, write the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from macl.core.devices import Placement
from macl.core.errors import UserError
from macl.core.files import atomic_write, remove_partial
from macl.reporting import Projection
from macl.reporting.charts import Curves, Dots, Histogram, save_figure
from macl.reporting.comparison import is_comparison, open_comparison
from macl.reporting.curves import training_curves
from macl.reporting.items import looks
from macl.reporting.map import EmbeddingMap, embedding_map
from macl.reporting.neighbors import cross
from macl.reporting.page import Picture, comparison_page, run_page, runs_page
from macl.runs import Run

POINTS = 2000
"""Items on the map by default."""

Drawable = Curves | Dots | Histogram | EmbeddingMap
"""A part of a report that is also a figure."""


def write_report(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    points: int | None = None,
    data: Path | None = None,
    projection: Projection | None = None,
    figures: Path | None = None,
    placement: Placement | None = None,
    paths: bool = False,
) -> list[Path]:
    """Write the page of a run, of several runs or of a comparison; see `macl.api.report`.

    Without `data`, data that cannot be read leaves the page without a map, and the page states why;
    with it, the mistake is an error.
    """
    folders = [sources] if isinstance(sources, Path) else list(sources)
    _check(folders, output, (points, data, projection) != (None, None, None))
    parts: list[Drawable] = []
    if is_comparison(folders[0]):
        compared = open_comparison(folders[0])
        curves = training_curves(compared.settings)
        page = comparison_page(compared, curves, paths)
        parts = [*curves, *compared.scores]
    elif len(folders) > 1:
        runs = dict(zip(run_names(folders), map(Run.open, folders), strict=True))
        curves = training_curves({name: [run] for name, run in runs.items()})
        page = runs_page(runs, curves, paths)
        parts = [*curves]
    else:
        run = Run.open(folders[0], placement)
        charts: list[Curves | Histogram] = [*training_curves({run.folder.name: [run]})]
        if histogram := Histogram.read(run):
            charts.append(histogram)
        picture, missing = _picture(run, points or POINTS, projection, data)
        page = run_page(run, charts, picture, missing, paths)
        parts = [*charts, *([] if picture is None else [picture.map])]
    files = [] if figures is None else write_figures(figures, parts)
    remove_partial(output.parent)
    atomic_write(output, lambda file: file.write(page.encode()))
    return [output, *files]


def write_figures(folder: Path, parts: Iterable[Drawable]) -> list[Path]:
    """NAME.png (200 dpi) and NAME.pdf of every part."""
    files = []
    for part in parts:
        figure = Figure(figsize=part.size, layout="constrained")
        part.draw(figure.subplots())
        files += save_figure(figure, folder, part.key, 200)
    return files


def _check(folders: Sequence[Path], output: Path, has_map: bool) -> None:
    """`UserError` for arguments that do not go together; `has_map`: some are for a map."""
    if not folders:
        raise UserError("a report needs the folder of a run or of a comparison.")
    if output.suffix != ".html":
        raise UserError(f"{output}: a report is a page; give a name that ends in .html.")
    compared = [folder for folder in folders if is_comparison(folder)]
    if has_map and (compared or len(folders) > 1):
        what = f"{compared[0]} is a comparison" if compared else "these are several runs"
        raise UserError(
            f"{what}, whose page has no map: `points=`, `data=` and `projection=` are for one run."
        )
    if compared and len(folders) > 1:
        raise UserError(
            f"{compared[0]} is a comparison: give it alone, or give the folders of several runs."
        )


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that distinguish the folders."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"the run {folders[0]} is given twice.")


def _picture(
    run: Run, points: int, projection: Projection | None, data: Path | None
) -> tuple[Picture | None, str]:
    """The map, or the reason why there is none."""
    try:
        shown = embedding_map(run, points, projection, data)
        seen = looks(run.modality, shown.dataset, shown.indices)
        return Picture(shown, seen, cross(run, shown)), ""
    except UserError as error:
        if data is not None:
            raise
        return None, str(error)
