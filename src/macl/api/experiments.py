"""Many runs: compare and reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.core.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

    from macl.experiments.compare import Cell, Finished
    from macl.experiments.running import Outcome, Started
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
    jobs: int | str = 1,
    devices: int = 1,
    metrics: Sequence[str] | None = None,
    control: Literal["level"] | None = None,
    executor: str = "local",
    choose: Mapping[str, Sequence[Any]] | None = None,
    on: str = "validation",
    overrides: Overrides | None = None,
    progress: bool = False,
    started: Started | None = None,
    finished: Finished | None = None,
    **values: Any,
) -> Outcome:
    """As `compare`, with the rows, the files and the failure of the comparison.

    Args:
        recipe: a recipe's name or a YAML file.
        vary: values by key: {"loss": ["nt-xent", "dcl", "macl"]}; several keys make a grid.
        seeds: every setting is run with the seeds 0 … seeds − 1.
        data: a file or a folder.
        out: the comparison's folder; by default comparisons/RECIPE.
        jobs: runs at a time, on a GPU or a core each; "auto": as many as there are GPUs, or cores.
        devices: processes that train each run.
        metrics: which scores and training figures to show, in this order.
        control: "level": also every adaptive temperature fixed at the mean that it had, by seed.
        executor: "local": processes here; "submitit": SLURM jobs, "ray": its cluster, with a folder
            that all machines share.
        choose: values to choose from for each setting of `vary`, {"loss.temperature": [0.1, 0.2]}:
            what has the largest mean of the first metric on the split `on` is compared on the test
            split. What was tried is in choice.json.
        on: the split to choose by: "validation", a part of the training data that `data.holdout`
            sets apart; "dev" for STS.
        overrides: dotted key → value, for all runs.
        progress: show a progress bar.
        started: called once, before the first run.
        finished: called after each run.
        **values: top-level keys of the recipe, for all runs.
    """
    given = {**data_overrides(data), **(overrides or {}), **values}
    folder = Path(out) if out is not None else Path("comparisons") / Path(recipe).stem

    from macl.core.files import owned_folder
    from macl.experiments import records, rows, running, tables
    from macl.experiments.choose import choose_and_plan
    from macl.experiments.compare import plan, require_adaptive
    from macl.experiments.executors import count_jobs

    how = running.How(count_jobs(jobs), devices, executor)
    cells = plan(recipe, {**(vary or {}), **(choose or {})}, seeds, given, folder)
    rows.require_known_protocols(cells, metrics)
    if control is not None:
        require_adaptive(cells)

    def ended(cell: Cell, count: int, total: int) -> None:
        rows.refuse_misspelled(cell, metrics)
        if finished is not None:
            finished(cell, count, total)

    with progress_bars(progress), owned_folder(folder):
        running.announce(started, folder, cells)
        if choose:
            cells = choose_and_plan(
                recipe, vary or {}, choose, on, seeds, given, folder,
                metrics[0] if metrics else None, how, finished,
            )  # fmt: skip
        records.require_same_grid(folder, cells)
        cells, failure = running.run_all(cells, how, folder, ended, controls=control is not None)
        table = rows.tabulate(cells, metrics)
        return running.Outcome(table, tables.write_tables(table, folder), failure)


def reproduce(name: str, **options: Any) -> DataFrame:
    """Run a table or figure of the paper; the paper's numbers beside ours, one line each.

    `options` are those of `run_reproduction`.

    Raises:
        CellsFailed: some runs failed; the others are kept, and the same call tries those again.
    """
    report, failure = run_reproduction(name, **options)
    if failure is not None:
        raise failure
    return report.frame()


def run_reproduction(
    name: str,
    *,
    scale: str = "smoke",
    data: PathLike | None = None,
    out: PathLike | None = None,
    jobs: int | str = 1,
    devices: int = 1,
    executor: str = "local",
    seeds: int | None = None,
    overrides: Overrides | None = None,
    progress: bool = False,
    started: Started | None = None,
    finished: Finished | None = None,
    **values: Any,
) -> tuple[SideBySide, UserError | None]:
    """As `reproduce`, with the text of the table, the files, and the failure of some runs.

    `jobs`, `devices`, `executor`, `overrides`, `progress`, `started`, `finished`, `values` are as
    in `run_comparison`.

    Args:
        name: of a table or figure; `macl reproduce` lists them.
        scale: "smoke", "laptop" or "paper".
        data: the data that the scale requires.
        out: the folder; by default reproductions/NAME-SCALE.
        seeds: instead of the scale's own number.
    """
    from macl.core.files import owned_folder
    from macl.experiments.executors import count_jobs
    from macl.experiments.running import How, announce, run_all
    from macl.paper import reproduce as module
    from macl.paper import tables
    from macl.paper.side_by_side import write_up

    how = How(count_jobs(jobs), devices, executor)
    table = tables.load(name)
    own = {**(overrides or {}), **values}
    given = {**data_overrides(data, module.data_key(table.scale(scale))), **own}
    folder = Path(out) if out is not None else Path("reproductions") / f"{name}-{scale}"
    cells = module.plan(table, scale, given, folder, seeds)
    module.require(table, scale, cells)
    with progress_bars(progress), owned_folder(folder):
        announce(started, folder, cells)
        _, failure = run_all(cells, how, folder, finished)
        command = module.command(table, scale, own, seeds)
        return write_up(table, scale, cells, folder, command), failure
