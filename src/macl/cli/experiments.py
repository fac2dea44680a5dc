"""Many runs at once: `macl compare` and `macl reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from macl import api
from macl.api.common import data_overrides
from macl.cli import arguments
from macl.cli.console import message, table, written
from macl.cli.flags import with_flags
from macl.cli.heartbeat import supervised
from macl.core.errors import UserError
from macl.core.progress import bars_fit

if TYPE_CHECKING:
    from macl.experiments.compare import Cell
    from macl.paper.tables import PaperTable
    from macl.recipes import Overrides


def compare(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    vary: list[str] | None = Option(
        None, metavar="KEY=A,B,C", help="Values to compare, baseline first; several make a grid."
    ),
    seeds: int = Option(3, min=1, help="Runs of each setting, with the seeds 0, 1, …."),
    data: arguments.Data = None,
    out: Path | None = Option(None, help="The folder to write. Default: comparisons/RECIPE."),
    jobs: arguments.Jobs = "1",
    devices: arguments.Devices = 1,
    executor: arguments.Executor = "local",
    metrics: str | None = Option(
        None,
        help='Metrics in the table, such as "knn top1,linear top1,alignment". Default: all scores '
        "and training figures.",
    ),
    choose: list[str] | None = Option(
        None,
        metavar="KEY=A,B,C",
        help="Values to choose from for each setting of --vary, by the first metric on the split "
        "--on; what is chosen is compared on the test split.",
    ),
    on: str = Option("validation", metavar="SPLIT", help="The split to choose by; dev for STS."),
    control: str | None = Option(
        None, help="level: also every adaptive temperature with τ fixed at the mean that it had."
    ),
) -> None:
    """Compare settings over seeds, with intervals; finished runs are kept if it is stopped."""
    if control not in (None, "level"):
        raise UserError(f"--control {control}: there is only `level`.")

    from macl import recipes

    values = recipes.read(recipe)
    every = recipes.parse_vary([*(vary or ()), *(choose or ())], values)
    keys = len(vary or ())
    varied, tried = dict([*every.items()][:keys]), dict([*every.items()][keys:])
    given = recipes.parse(overrides or (), values)
    folder = out or Path("comparisons") / Path(recipe).stem

    from macl.experiments import tables
    from macl.experiments.choose import choice_lines

    with supervised(folder):
        outcome = api.run_comparison(
            recipe,
            varied,
            seeds=seeds,
            data=data,
            out=folder,
            jobs=jobs,
            devices=devices,
            metrics=None if metrics is None else [name.strip() for name in metrics.split(",")],
            control="level" if control else None,
            executor=executor,
            choose=tried,
            on=on,
            overrides=given,
            progress=bars_fit(),
            started=_started,
            finished=_finished,
        )
    for line in choice_lines(folder) if tried else ():
        message(line)
    if outcome.rows:
        for title, (header, lines), labels in tables.parts(outcome.rows):
            beside = 3 if title == tables.DIFFERENCES else 0  # the difference with its interval
            table(title or recipe, header, lines, keys=labels + beside)
        for note in tables.notes_on(outcome.rows, folder):
            message(note)
    written(*outcome.files)
    if outcome.failure is not None:
        raise outcome.failure


def reproduce(
    name: str | None = Argument(None, help="A table or figure of the paper; without it, list all."),
    overrides: arguments.Overrides = None,
    scale: str = Option(
        "smoke", help="Size of the runs: smoke (a minute), laptop (hours on a CPU) or paper (GPUs)."
    ),
    data: Path | None = Option(None, help="The data that the table needs at this scale."),
    out: Path | None = Option(None, help="The folder to write. Default: reproductions/NAME-SCALE."),
    jobs: arguments.Jobs = "1",
    devices: arguments.Devices = 1,
    executor: arguments.Executor = "local",
    seeds: int | None = Option(
        None, min=1, help="Runs of each setting, with seeds 0, 1, …. Default: the scale's number."
    ),
    dry_run: bool = Option(False, "--dry-run", help="List the runs and their cost; run nothing."),
) -> None:
    """Run a table or figure of the paper at a chosen scale, beside the paper's numbers."""
    if name is None:
        _list_tables()
        return
    from macl import recipes
    from macl.paper import tables as paper_tables

    chosen = paper_tables.load(name)
    runs = chosen.scale(scale)
    if overrides and runs is None:
        raise UserError(f"{name} is computed without any run: there is nothing to set.")
    given = recipes.parse(overrides, recipes.read(runs.recipe)) if overrides and runs else {}
    if dry_run:
        _list_runs(chosen, scale, given, data, seeds)
        return
    folder = out or Path("reproductions") / f"{name}-{scale}"
    with supervised(folder):
        report, failure = api.run_reproduction(
            name,
            scale=scale,
            data=data,
            out=folder,
            jobs=jobs,
            devices=devices,
            executor=executor,
            seeds=seeds,
            overrides=given,
            progress=bars_fit(),
            started=_started,
            finished=_finished,
        )
    header, lines = report.table
    if lines:
        table(f"{chosen.where}: {chosen.title}", header, lines, keys=len(chosen.axes))
    written(*report.files)
    if failure is not None:
        raise failure


def _list_tables() -> None:
    from macl.paper import tables as paper_tables
    from macl.paper.reproduce import needs

    def needed(table: PaperTable, scale: str) -> str:
        states = {True: "available", False: "missing", None: "you provide it"}
        found = needs(table, scale).items()
        lines = [with_flags(f"{what}: {states[there]}") for what, there in found]
        return "\n".join(lines) or "ready"

    tables = [paper_tables.load(name) for name in paper_tables.available()]
    scales = paper_tables.SCALES
    rows = [(t.name, t.where, t.title, *(needed(t, s) for s in scales)) for t in tables]
    header = ("name", "in the paper", "what", *scales)
    table("Tables and figures of the paper, and what each needs at each scale", header, rows)


def _list_runs(
    chosen: PaperTable, scale: str, given: Overrides, data: Path | None, seeds: int | None
) -> None:
    from macl.paper.reproduce import data_key, listing, plan, time_text
    from macl.recipes import texts_of

    runs = chosen.scale(scale)
    paths = data_overrides(data, data_key(runs))
    cells = plan(chosen, scale, {**paths, **given}, Path(), seeds)
    if runs is None:
        message(f"{chosen.name} is computed without any run.")
        return
    header, lines, total = listing(chosen, runs, cells)
    table(f"{chosen.where}: {chosen.title}", header, lines, keys=len(chosen.axes))
    if runs.overrides:
        message(f"all runs: {' '.join(texts_of(runs.overrides))}")
    message(
        f"{len(cells)} runs, {total.steps:,} steps, {total.samples:,} samples, about "
        f"{time_text(total.hours)} of {'GPU' if runs.gpu else 'core'} time, evaluation aside"
    )
    message(f"at {runs.speed.samples_per_second:g} samples a second, {runs.speed.basis}")


def _started(folder: Path, runs: int, done: int) -> None:
    message(f"{runs} runs in {folder}, {done} of them finished before")


def _finished(cell: Cell, ended: int, total: int) -> None:
    """Where there is no progress bar, a line for every run that ends."""
    if not bars_fit():
        message(f"{ended} of {total} runs ended: {cell.folder.name}")
