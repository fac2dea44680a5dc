"""Many runs at once: `macl compare` and `macl reproduce`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from macl.cli.arguments import DataOption, ExecutorOption, Overrides
from macl.cli.console import escaped, message, on_terminal, table
from macl.cli.flags import with_flags
from macl.cli.heartbeat import Heartbeat
from macl.core.errors import UserError

if TYPE_CHECKING:
    from macl.experiments.compare import Cell
    from macl.experiments.running import Started
    from macl.paper.tables import PaperTable
    from macl.recipes import Overrides as TypedOverrides

Jobs = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Runs at a time, each on a GPU of its own, or on one core where there is none. auto: "
        "as many as there are GPUs, or cores.",
    ),
]
Devices = Annotated[
    int, typer.Option(min=1, help="Processes that train each run: one for each GPU, or on the CPU.")
]


def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values of a key to compare; the first is the baseline. Several make a grid.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each setting, with the seeds 0, 1, ….")
    ] = 3,
    data: DataOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write. Default: comparisons/RECIPE.")
    ] = None,
    jobs: Jobs = "1",
    devices: Devices = 1,
    executor: ExecutorOption = "local",
    metrics: Annotated[
        str | None,
        typer.Option(
            help='Metrics in the table, such as "knn top1,linear top1,alignment". Default: all '
            "scores and training figures."
        ),
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values to choose from for each setting of --vary, by the first metric on the "
            "split --on; what is chosen is compared on the test split.",
        ),
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="SPLIT", help="The split to choose by; dev for STS.")
    ] = "validation",
    control: Annotated[
        str | None,
        typer.Option(
            help="level: for every adaptive temperature also the same loss with τ fixed at the "
            "mean that it had."
        ),
    ] = None,
) -> None:
    """Compare settings over seeds, with intervals; finished runs are kept if it is stopped."""
    if control not in (None, "level"):
        raise UserError(f"--control {control}: there is only `level`.")

    from macl import api, recipes

    values = recipes.read(recipe)
    every = recipes.parse_vary([*(vary or ()), *(choose or ())], values)
    keys = len(vary or ())
    varied, tried = dict([*every.items()][:keys]), dict([*every.items()][keys:])
    given = recipes.parse(overrides or (), values)
    folder = out or Path("comparisons") / Path(recipe).stem

    from macl.experiments.choose import choice_lines
    from macl.experiments.records import looks_text, read_looks
    from macl.experiments.tables import DIFFERENCES, POOLED, correction, differences, pools, results

    with stoppable(), Heartbeat() as heartbeat:
        outcome = api.run_comparison(
            recipe,
            varied,
            seeds=seeds,
            data=data,
            out=folder,
            jobs=count(jobs),
            devices=devices,
            metrics=None if metrics is None else [name.strip() for name in metrics.split(",")],
            control="level" if control else None,
            executor=executor,
            choose=tried,
            on=on,
            overrides=given,
            progress=on_terminal(),
            started=_announce(heartbeat),
            finished=_progress_line,
        )
    for line in choice_lines(folder) if tried else ():
        message(escaped(line))
    if outcome.rows:
        for title, (header, lines), columns in (
            (recipe, results(outcome.rows), keys),
            (DIFFERENCES, differences(outcome.rows), keys + 4),
            (POOLED, pools(outcome.rows), 2),
        ):
            if lines:
                table(title, header, lines, keys=columns)
        for note in filter(None, (correction(outcome.rows), looks_text(read_looks(folder)))):
            message(escaped(note))
    _list_files(outcome.files, outcome.failure)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure of the paper; without it, list all of them."),
    ] = None,
    overrides: Overrides = None,
    scale: Annotated[
        str,
        typer.Option(
            help="The size of the runs: smoke (a minute), laptop (hours on a CPU) or paper (GPUs)."
        ),
    ] = "smoke",
    data: Annotated[
        Path | None, typer.Option(help="The data that the table needs at this scale.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write. Default: reproductions/NAME-SCALE.")
    ] = None,
    jobs: Jobs = "1",
    devices: Devices = 1,
    executor: ExecutorOption = "local",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs of each setting, with the seeds 0, 1, …. Default: the scale's own number.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their cost; run nothing.")
    ] = False,
) -> None:
    """Run a table or figure of the paper at a chosen scale, beside the paper's numbers."""
    if name is None:
        _list_tables()
        return
    from macl import api
    from macl.paper import tables as paper_tables

    chosen = paper_tables.load(name)
    given = _parsed(chosen, scale, overrides)
    if dry_run:
        _list_runs(chosen, scale, given, data, seeds)
        return
    with stoppable(), Heartbeat() as heartbeat:
        found, failure = api.run_reproduction(
            name,
            scale=scale,
            data=data,
            out=out,
            jobs=count(jobs),
            devices=devices,
            executor=executor,
            seeds=seeds,
            overrides=given,
            progress=on_terminal(),
            started=_announce(heartbeat),
            finished=_progress_line,
        )
    if found.body:
        table(f"{chosen.where}: {chosen.title}", found.header, found.body, keys=len(chosen.axes))
    _list_files(found.files, failure)


def _parsed(chosen: PaperTable, scale: str, overrides: list[str] | None) -> TypedOverrides:
    from macl import recipes

    runs = chosen.scale(scale)
    if not overrides:
        return {}
    if runs is None:
        raise UserError(f"{chosen.name} is computed without any run: there is nothing to set.")
    return recipes.parse(overrides, recipes.read(runs.recipe))


def _list_tables() -> None:
    from macl.paper import tables as paper_tables
    from macl.paper.reproduce import needs

    def needed(table: PaperTable, scale: str) -> str:
        states = {True: "available", False: "missing", None: "you provide it"}
        found = [with_flags(f"{need.what}: {states[need.there]}") for need in needs(table, scale)]
        return "\n".join(found) or "ready"

    tables = [paper_tables.load(name) for name in paper_tables.available()]
    scales = paper_tables.SCALES
    rows = [(t.name, t.where, t.title, *(needed(t, s) for s in scales)) for t in tables]
    header = ("name", "in the paper", "what", *scales)
    table("Tables and figures of the paper, and what each needs at each scale", header, rows)


def _list_runs(
    chosen: PaperTable, scale: str, given: TypedOverrides, data: Path | None, seeds: int | None
) -> None:
    from macl.api.common import data_overrides
    from macl.paper.costs import listing, time_text
    from macl.paper.reproduce import data_key, plan
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
        message(escaped(f"all runs: {' '.join(texts_of(runs.overrides))}"))
    message(
        f"{len(cells)} runs, {total.steps:,} steps, {total.samples:,} samples, about "
        f"{time_text(total.hours)} of {'GPU' if runs.gpu else 'core'} time, evaluation aside"
    )
    message(escaped(f"at {runs.speed.samples_per_second:g} samples a second, {runs.speed.basis}"))


def count(jobs: str) -> int | Literal["auto"]:
    """The number of `--jobs`, or "auto"."""
    if jobs == "auto":
        return "auto"
    if not jobs.isdecimal():
        raise UserError(f"--jobs {jobs}: give a number, or auto.")
    return int(jobs)


@contextmanager
def stoppable() -> Iterator[None]:
    """A stop ends the command, with everything saved."""
    from macl.core.signals import Interrupted

    for number in (signal.SIGTERM, signal.SIGHUP):  # end like Ctrl-C, runs saved
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        message("stopped; give the same command again to continue")
        sys.exit(130)


def _announce(heartbeat: Heartbeat) -> Started:
    """What is called before the first run."""

    def started(folder: Path, runs: int, done: int) -> None:
        message(f"{runs} runs in {escaped(str(folder))}, {done} of them finished before")
        heartbeat.start(folder)

    return started


def _progress_line(cell: Cell, ended: int, total: int) -> None:
    """Where there is no progress bar, a line for every run that ends."""
    if not on_terminal():
        message(f"{ended} of {total} runs ended: {escaped(cell.folder.name)}")


def _list_files(files: list[Path], failure: UserError | None) -> None:
    for file in files:
        message(f"written: {escaped(str(file))}")
    if failure is not None:
        raise failure
