"""Many runs at once: `macl compare`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import Overrides, data_override
from macl.cli.console import escaped, table, tell


def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="key=a,b,c; several --vary make a grid.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, …")] = 3,
    data: Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: comparisons/RECIPE.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, one core each.")] = 1,
    metrics: Annotated[
        str | None, typer.Option(help='Columns, such as "knn top1,linear top1,alignment".')
    ] = None,
) -> None:
    """Compare settings over seeds, with intervals; stopped or not, finished runs are kept."""
    from macl.experiments import compare as module
    from macl.experiments.tables import as_cells, write_tables
    from macl.training.callbacks import Interrupted

    folder = out or Path("comparisons") / Path(recipe).stem
    given = [*(overrides or ()), *data_override(data)]
    cells = module.plan(recipe, vary or [], seeds, given, folder)
    done = sum(map(module.is_finished, cells))
    tell(f"{len(cells)} runs in {escaped(str(folder))}, {done} of them finished before")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, runs saved
    try:
        module.run_cells(cells, jobs)
    except (Interrupted, KeyboardInterrupt):
        tell("stopped; give the same command again to go on")
        sys.exit(130)
    rows = module.tabulate(cells, None if metrics is None else metrics.split(","))
    header, lines = as_cells(rows)
    table(recipe, tuple(header), lines)
    for file in write_tables(rows, folder):
        tell(f"written: {escaped(str(file))}")
