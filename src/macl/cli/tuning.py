"""`macl tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macl.cli.arguments import DataOption, ExecutorOption, Overrides
from macl.cli.console import escaped, message, on_terminal, table
from macl.cli.experiments import Jobs, count, stoppable
from macl.cli.heartbeat import Heartbeat
from macl.core.errors import UserError

if TYPE_CHECKING:
    from macl.experiments.tune import Space


def tune(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Overrides = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A..B[:log]|A,B,C",
            help="A range or values of a key. May be repeated.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings to try, over all machines.")] = 30,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:min]",
            help="monitor (the validation score), seconds, or a column of metrics.csv; several "
            "give a Pareto front. Default: monitor.",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(help="Without labels: effective_rank or alpha_req, which choose badly."),
    ] = None,
    confirm: Annotated[
        int, typer.Option(min=1, help="Best settings to train again with new seeds.")
    ] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="New seeds for each of them.")] = 3,
    data: DataOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write. Default: tuning/RECIPE.")
    ] = None,
    jobs: Jobs = "1",
    executor: ExecutorOption = "local",
) -> None:
    """Search settings by Optuna, then confirm the best with new seeds; continues if stopped."""
    from macl import api, recipes

    values = recipes.read(recipe)
    space = _space(search or (), values)
    given = recipes.parse(overrides or (), values)
    folder = out or Path("tuning") / Path(recipe).stem
    from macl.experiments.tables import differences, results

    with stoppable(), Heartbeat() as heartbeat:
        heartbeat.start(folder)
        found = api.tune(
            recipe,
            space,
            trials=trials,
            objectives=objective or ["monitor"],
            criterion=criterion,
            confirm=confirm,
            seeds=seeds,
            data=data,
            out=folder,
            jobs=count(jobs),
            executor=executor,
            overrides=given,
            progress=on_terminal(),
        )
    states = [trial["state"] for trial in found.trials]
    message(f"{states.count('complete')} trials ended, {states.count('pruned')} were given up")
    for title, (header, lines) in (
        ("Confirmation with new seeds", results(found.rows)),
        ("Difference to the recipe as it is", differences(found.rows)),
    ):
        if lines:
            table(title, header, lines)
    message(escaped(f"best with new seeds: {found.best}"))
    for file in found.files:
        message(f"written: {escaped(str(file))}")


def _space(texts: Any, values: Any) -> Space:
    """The ranges and values of `KEY=A..B:log` and `KEY=A,B,C`."""
    from macl import recipes
    from macl.experiments.tune import Range

    space: dict[str, Any] = {}
    for text in texts:
        key, _, choices = text.partition("=")
        bounds, _, scale = choices.partition(":")
        low, dots, high = bounds.partition("..")
        if not dots:
            space |= recipes.parse_vary([text], values)
            continue
        ends = [recipes.parse([f"{key}={end}"], values)[key.strip()] for end in (low, high)]
        if scale not in ("", "log") or any(isinstance(end, bool) for end in ends):
            raise UserError(f"--search {text}: write KEY=LOW..HIGH or KEY=LOW..HIGH:log.")
        try:
            numbers = [end if isinstance(end, int) else float(end) for end in ends]
        except (TypeError, ValueError) as error:
            raise UserError(f"--search {text}: {low} and {high} are no numbers.") from error
        space[key.strip()] = Range(numbers[0], numbers[1], log=scale == "log")
    if not space:
        raise UserError("--search says what to try, such as optimizer.lr=1e-4..1e-2:log.")
    return space
