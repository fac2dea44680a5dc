"""`macl tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from macl import api
from macl.cli import arguments
from macl.cli.console import message, table, written
from macl.cli.heartbeat import supervised
from macl.core.errors import UserError
from macl.core.progress import bars_fit

if TYPE_CHECKING:
    from macl.experiments.tune import Space


def tune(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    search: list[str] | None = Option(
        None, metavar="KEY=A..B[:log]|A,B,C", help="A range or values of a key. May be repeated."
    ),
    trials: int = Option(30, min=1, help="Settings to try, over all machines."),
    objective: list[str] | None = Option(
        None,
        metavar="NAME[:min]",
        help="monitor (the validation score), seconds, or a column of metrics.csv; several give a "
        "Pareto front. Default: monitor.",
    ),
    criterion: str | None = Option(
        None, help="Without labels: effective_rank or alpha_req, which choose badly."
    ),
    confirm: int = Option(3, min=1, help="Best settings to train again with new seeds."),
    seeds: int = Option(3, min=1, help="New seeds for each of them."),
    data: arguments.Data = None,
    out: Path | None = Option(None, help="The folder to write. Default: tuning/RECIPE."),
    jobs: arguments.Jobs = "1",
    executor: arguments.Executor = "local",
) -> None:
    """Search settings by Optuna, then confirm the best with new seeds; continues if stopped."""
    from macl import recipes

    values = recipes.read(recipe)
    space = _space(search or (), values)
    given = recipes.parse(overrides or (), values)
    folder = out or Path("tuning") / Path(recipe).stem
    from macl.experiments.tables import parts

    with supervised(folder):
        tuned = api.tune(
            recipe,
            space,
            trials=trials,
            objectives=objective or ["monitor"],
            criterion=criterion,
            confirm=confirm,
            seeds=seeds,
            data=data,
            out=folder,
            jobs=jobs,
            executor=executor,
            overrides=given,
            progress=bars_fit(),
        )
    states = [trial["state"] for trial in tuned.trials]
    message(f"{states.count('complete')} trials ended, {states.count('pruned')} were given up")
    titles = ("Confirmation with new seeds", "Difference to the recipe as it is")
    for title, (_, (header, lines), _) in zip(titles, parts(tuned.rows), strict=False):
        table(title, header, lines)
    message(f"best with new seeds: {tuned.best}")
    written(*tuned.files)


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
            raise UserError(f"--search {text}: {low} and {high} must be numbers.") from error
        space[key.strip()] = Range(numbers[0], numbers[1], log=scale == "log")
    if not space:
        raise UserError("--search says what to try, such as optimizer.lr=1e-4..1e-2:log.")
    return space
