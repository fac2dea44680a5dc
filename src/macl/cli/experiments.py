"""Many runs at once: `macl compare` and `macl reproduce`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macl.cli.arguments import Overrides, data_override
from macl.cli.console import escaped, table, tell
from macl.core.errors import UserError

if TYPE_CHECKING:
    from macl.experiments.compare import Cell
    from macl.paper.tables import PaperTable

Jobs = Annotated[int, typer.Option(min=1, help="Runs side by side, one core each.")]
Devices = Annotated[
    int, typer.Option(min=1, help="Processes that train each run (GPUs, or CPU workers).")
]


def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="key=a,b,c; several --vary make a grid.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, …")] = 3,
    data: Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: comparisons/RECIPE.")] = None,
    jobs: Jobs = 1,
    devices: Devices = 1,
    metrics: Annotated[
        str | None, typer.Option(help='Columns, such as "knn top1,linear top1,alignment".')
    ] = None,
) -> None:
    """Compare settings over seeds, with intervals; stopped or not, finished runs are kept."""
    from macl.experiments import compare as module
    from macl.experiments.tables import DIFFERENCES, differences, results, write_tables

    folder = out or Path("comparisons") / Path(recipe).stem
    given = [*(overrides or ()), *data_override(data)]
    cells = module.plan(recipe, vary or [], seeds, given, folder)
    failed = _run(cells, folder, jobs, devices)
    rows = module.tabulate(cells, None if metrics is None else metrics.split(","))
    for title, (header, lines) in {
        recipe: results(rows),
        DIFFERENCES: differences(rows),
    }.items():
        if lines:
            table(title, header, lines)
    _tell_written(write_tables(rows, folder), failed)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper. None: list them all.")
    ] = None,
    overrides: Overrides = None,
    scale: Annotated[str, typer.Option(help="smoke, laptop or paper.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="The data it needs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: reproductions/NAME-SCALE.")] = None,
    jobs: Jobs = 1,
    devices: Devices = 1,
    seeds: Annotated[int | None, typer.Option(min=1, help="Instead of the scale's own.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and what they cost; run nothing.")
    ] = False,
) -> None:
    """Run a table or figure of the paper at a scale you can afford, beside the paper's numbers."""
    from macl.paper import reproduce as module
    from macl.paper import tables as paper_tables

    if name is None:
        _list_tables()
        return
    chosen = paper_tables.load(name)
    folder = out or Path("reproductions") / f"{name}-{scale}"
    given = [*(overrides or ()), *data_override(data, module.data_key(chosen.scale(scale)))]
    cells = module.plan(chosen, scale, given, folder, seeds)
    if dry_run:
        _list_runs(chosen, scale, cells)
        return
    module.require(chosen, scale, cells)
    failed = _run(cells, folder, jobs, devices) if cells else None
    from macl.paper.side_by_side import write_up

    command = module.command(chosen, scale, overrides or (), seeds)
    header, lines, files = write_up(chosen, scale, cells, folder, command)
    if lines:
        table(f"{chosen.where}: {chosen.title}", header, lines)
    _tell_written(files, failed)


def _list_tables() -> None:
    from macl.paper import tables as paper_tables
    from macl.paper.reproduce import needs

    def told(table: PaperTable, scale: str) -> str:
        words = {True: "there", False: "not here", None: "bring it"}
        found = [f"{need.what}: {words[need.there]}" for need in needs(table, scale)]
        return "\n".join(found) or "ready"

    tables = [paper_tables.load(name) for name in paper_tables.available()]
    rows = [(t.name, t.where, t.title, *(told(t, s) for s in paper_tables.SCALES)) for t in tables]
    header = ("name", "in the paper", "what", *paper_tables.SCALES)
    table("Tables and figures of the paper, and what each needs at each scale", header, rows)


def _list_runs(chosen: PaperTable, scale: str, cells: list[Cell]) -> None:
    runs = chosen.scale(scale)
    if runs is None:
        tell(f"{chosen.name} is computed without any run.")
        return
    from macl.paper.costs import listing

    header, lines, total = listing(chosen, runs, cells)
    table(f"{chosen.where}: {chosen.title}", header, lines)
    if runs.overrides:
        tell(escaped(f"all runs: {' '.join(runs.overrides)}"))
    tell(
        f"{len(cells)} runs, {total.steps:,} steps, {total.samples:,} samples, about "
        f"{total.hours:.3g} {'GPU' if runs.gpu else 'core'}-hours of training, evaluation aside"
    )
    tell(escaped(f"at {runs.speed.samples_per_second:g} samples a second, {runs.speed.basis}"))


def _run(cells: list[Cell], folder: Path, jobs: int, devices: int) -> UserError | None:
    """Run what is not finished; what failed, as long as there is something to show without it.

    A stop ends the command, with everything saved.
    """
    from macl.core.signals import Interrupted
    from macl.experiments import running
    from macl.experiments.compare import is_finished

    done = sum(map(is_finished, cells))
    tell(f"{len(cells)} runs in {escaped(str(folder))}, {done} of them finished before")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, runs saved
    try:
        running.run_cells(cells, jobs, devices)
    except running.CellsFailed as failed:
        if not any(map(is_finished, cells)):
            raise
        return failed
    except (Interrupted, KeyboardInterrupt):
        tell("stopped; give the same command again to go on")
        sys.exit(130)
    return None


def _tell_written(files: list[Path], failed: UserError | None) -> None:
    for file in files:
        tell(f"written: {escaped(str(file))}")
    if failed is not None:
        raise failed
