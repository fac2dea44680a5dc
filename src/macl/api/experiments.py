"""Many runs: compare and reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.core.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

    from macl.experiments.outcome import Outcome
    from macl.experiments.running import Finished, Started
    from macl.paper.side_by_side import SideBySide
    from macl.recipes import Overrides


def compare(
    recipe: str, vary: Mapping[str, Sequence[Any]] | None = None, **options: Any
) -> DataFrame:
    """Compare settings over seeds; one line per setting and metric, with intervals and verdicts.

    `options` are those of `run_comparison`. Tables are written to the comparison's folder.

        macl.compare("digits", {"loss": ["nt-xent", "macl"]}, seeds=3, epochs=20)

    Raises:
        CellsFailed: some runs failed; the others are kept, and the same call tries those again.
    """
    from macl.experiments.tables import summary

    outcome = run_comparison(recipe, vary, **options)
    if outcome.failure is not None:
        raise outcome.failure
    return summary(outcome.rows)


def run_comparison(
    recipe: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int = 3,
    data: PathLike | None = None,
    out: PathLike | None = None,
    jobs: int = 1,
    devices: int = 1,
    metrics: Sequence[str] | None = None,
    control: Literal["level"] | None = None,
    shard: tuple[int, int] | None = None,
    merge: Sequence[PathLike] = (),
    overrides: Overrides | None = None,
    progress: bool = False,
    started: Started | None = None,
    finished: Finished | None = None,
    **values: Any,
) -> Outcome:
    """As `compare`, with the rows, the files and the failure of the comparison.

    Args:
        recipe: a recipe's name or a YAML file.
        vary: the values of each key that varies: {"loss": ["nt-xent", "dcl", "macl"]}; several
            keys make a grid.
        seeds: every setting is run with the seeds 0 … seeds − 1.
        data: a file or a folder.
        out: the comparison's folder; by default comparisons/RECIPE.
        jobs: runs at a time, one core each.
        devices: processes that train each run.
        metrics: which scores and training figures to show, in this order.
        control: "level": for every setting with an adaptive temperature a further one, the same
            with τ fixed at the mean that the run of the same seed had.
        shard: (i, n): run part i of n of the grid and write no table; `merge` brings them together.
        merge: folders of other machines' parts of this comparison: their runs are copied to `out`
            if their recipes agree, nothing is run, and the tables are written.
        overrides: dotted key → value, for all runs.
        progress: show a progress bar.
        started: called once, before the first run.
        finished: called after each run.
        **values: top-level keys of the recipe, for all runs.
    """
    given = {**data_overrides(data), **(overrides or {}), **values}
    folder = Path(out) if out is not None else Path("comparisons") / Path(recipe).stem

    from macl.experiments.compare import plan
    from macl.experiments.controls import require_adaptive
    from macl.experiments.merge import Shard, merge_and_tabulate
    from macl.experiments.running import announce, run_and_tabulate, run_shard

    cells = plan(recipe, vary or {}, seeds, given, folder)
    controls = control is not None
    if controls:
        require_adaptive(cells)
    if merge:
        if shard is not None:
            raise UserError("--merge brings parts together: leave --shard out.")
        return merge_and_tabulate(cells, folder, [*map(Path, merge)], metrics, controls=controls)
    options: dict[str, Any] = {"controls": controls, "finished": finished}
    with progress_bars(progress):
        if shard is not None:
            part = Shard(*shard)
            announce(started, folder, part.of(cells))
            return run_shard(cells, part, folder, jobs, devices, **options)
        announce(started, folder, cells)
        return run_and_tabulate(cells, folder, jobs, devices, metrics=metrics, **options)


def reproduce(name: str, **options: Any) -> DataFrame:
    """Run a table or figure of the paper; the paper's numbers beside ours, one line each.

    `options` are those of `run_reproduction`.

    Raises:
        CellsFailed: some runs failed; the others are kept, and the same call tries those again.
    """
    found, failure = run_reproduction(name, **options)
    if failure is not None:
        raise failure
    return found.frame()


def run_reproduction(
    name: str,
    *,
    scale: str = "smoke",
    data: PathLike | None = None,
    out: PathLike | None = None,
    jobs: int = 1,
    devices: int = 1,
    seeds: int | None = None,
    overrides: Overrides | None = None,
    progress: bool = False,
    started: Started | None = None,
    finished: Finished | None = None,
    **values: Any,
) -> tuple[SideBySide, UserError | None]:
    """As `reproduce`, with the text of the table, the files, and the failure of some runs.

    Args:
        name: of a table or figure; `macl reproduce` lists them.
        scale: "smoke", "laptop" or "paper".
        data: the data that the scale requires.
        out: the folder; by default reproductions/NAME-SCALE.
        jobs: runs at a time, one core each.
        devices: processes that train each run.
        seeds: instead of the scale's own number.
        overrides: dotted key → value, for all runs.
        progress: show a progress bar.
        started: called once, before the first run.
        finished: called after each run.
        **values: top-level keys of the recipe, for all runs.
    """
    from macl.experiments.records import RECORDS
    from macl.experiments.running import announce, recorded, run_all
    from macl.paper import reproduce as module
    from macl.paper import tables
    from macl.paper.side_by_side import write_up

    table = tables.load(name)
    own = {**(overrides or {}), **values}
    given = {**data_overrides(data, module.data_key(table.scale(scale))), **own}
    folder = Path(out) if out is not None else Path("reproductions") / f"{name}-{scale}"
    cells = module.plan(table, scale, given, folder, seeds)
    module.require(table, scale, cells)
    announce(started, folder, cells)
    with progress_bars(progress):
        record = recorded(folder / RECORDS, cells, finished)
        failure = run_all(cells, jobs, devices, record) if cells else None
    command = module.command(table, scale, own, seeds)
    return write_up(table, scale, cells, folder, command), failure
