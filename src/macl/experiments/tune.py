"""Settings of a recipe searched by Optuna.

A trial is a run with seed 0, scored by what training monitors, never by test data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from macl import modalities, recipes
from macl.core.errors import UserError
from macl.core.locks import Busy, lock_folder
from macl.core.progress import silence
from macl.core.seeding import mix
from macl.core.signals import Interrupted
from macl.experiments.compare import Cell, Setting, run_folder
from macl.experiments.rows import scores_of
from macl.experiments.running import train_cell
from macl.probes.score import Score
from macl.recipes import Overrides, text_of
from macl.runs import Run

STUDY = "study.log"
"""The journal of Optuna, which machines may share; `optuna-dashboard study.log` shows it."""
COLLAPSED = 1.5
"""Effective rank below which a trial is given up."""
YOUNG = 5.0
"""Seconds that a trial may take to begin; after them a trial without a lock is dead."""
MINIMIZED = ("seconds", "alpha_req_distance")
LABEL_FREE = ("effective_rank", "alpha_req")
PROTOCOL = "validation"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones where both are."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise UserError(f"{self.low}..{self.high}: a range goes up, with log from above 0.")


Space = Mapping[str, "Range | Sequence[Any]"]
"""Key → a range, or a list of values."""


@dataclass(frozen=True)
class Objective:
    """A figure that is made large, or small."""

    name: str
    """A column of metrics.csv, of which the last value counts, or "seconds" of training."""
    smallest: bool = False

    @classmethod
    def of(cls, text: str) -> Objective:
        """From "monitor", "seconds" or "alignment:min"."""
        name, _, direction = text.partition(":")
        if direction not in ("", "min", "max"):
            raise UserError(f"objective {text}: write NAME, NAME:min or NAME:max.")
        return cls(name, direction == "min" or (not direction and name in MINIMIZED))


@dataclass(frozen=True)
class Search:
    """What is searched, and where it is kept."""

    recipe: str
    space: Space
    given: Overrides
    folder: Path
    objectives: tuple[Objective, ...]

    def cell(self, own: Mapping[str, Any], seed: int) -> Cell:
        """The run of one setting; no setting is the recipe as it is."""
        label = ", ".join(f"{key}={text_of(value)}" for key, value in own.items()) or "the recipe"
        setting: Setting = (("setting", label),)
        resolved = recipes.load(self.recipe, self.given, own, {"seed": seed})
        place = run_folder(self.folder, setting, seed)
        return Cell(setting, seed, resolved.model_dump(mode="json"), place)

    def check(self) -> None:
        """`UserError` for a setting that no recipe can have, or nothing to select by."""
        ends = [[r.low] if isinstance(r, Range) else list(r) for r in self.space.values()]
        if not all(ends):
            raise UserError("a key to search has no values: give at least one.")
        for chosen in islice(product(*ends), 256):
            self.cell(dict(zip(self.space, chosen, strict=True)), 0)
        recipe = recipes.load(self.recipe, self.given)
        if not recipe.monitor_every:
            raise UserError("monitor_every=0: without it there is nothing to select by.")
        if any(each.name == "monitor" for each in self.objectives):
            modality = modalities.get(recipe.modality)
            if modality.monitor(recipe.evaluation, modality.load(recipe.data, "train")) is None:
                raise UserError(
                    f"{self.recipe} has no validation score to select by: it needs "
                    f"{modality.monitor_needs}. Criteria without labels choose badly: effective "
                    "rank cost 1.26 points on average over 8 choices that we measured, a random "
                    f"choice 0.86. `criterion=` takes one nonetheless: {', '.join(LABEL_FREE)}."
                )


def run_search(search: Search, trials: int, seed: int = 0) -> Any:
    """The study with `trials` finished trials; an interrupted one continues, others may take part.

    TPE proposes. The median of earlier trials decides which are given up early, where there is one
    objective; a trial with NaN or a collapsed encoder always is.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import MaxTrialsCallback
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search.folder.mkdir(parents=True, exist_ok=True)
    directions = ["minimize" if each.smallest else "maximize" for each in search.objectives]
    study = optuna.create_study(
        study_name="macl",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(search.folder / STUDY))),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
        directions=directions,
        load_if_exists=True,
    )
    _revive(study, search)
    # Another seed for each start: the same one would propose the same again.
    study.sampler = optuna.samplers.TPESampler(
        seed=mix(seed, len(study.trials)) % 2**32, multivariate=True, constant_liar=True
    )
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    if len(study.get_trials(states=ended)) < trials:
        most = MaxTrialsCallback(trials, states=ended)
        study.optimize(partial(_trial, search=search), callbacks=[most], catch=(Busy,))
    return study


def _revive(study: Any, search: Search) -> None:
    """Try the settings again of trials whose process ended without a word."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        age = time.time() - trial.datetime_start.timestamp()
        time.sleep(max(0.0, YOUNG - age))
        lock = f".{trial.user_attrs.get('run', trial.number)}.lock"
        # Where the lock is held, the trial runs, on this machine or another.
        with suppress(Busy), lock_folder(search.folder / "runs", lock):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


def _trial(trial: Any, search: Search) -> list[float]:
    """Train one setting, unless it collapses or the pruner gives it up; returns its figures."""
    import optuna

    own = {key: _suggest(trial, key, values) for key, values in search.space.items()}
    cell = search.cell(own, 0)
    trial.set_user_attr("run", cell.folder.name)
    trial.set_user_attr("setting", {key: text_of(value) for key, value in own.items()})
    (first, *others) = search.objectives

    def look(row: dict[str, float]) -> None:
        if row.get("effective_rank", 0.0) < COLLAPSED:
            raise optuna.TrialPruned("the encoder collapsed")
        if not others and first.name in row:
            trial.report(row[first.name], int(row["epoch"]))
            if trial.should_prune():
                raise optuna.TrialPruned("below the median")

    with lock_folder(cell.folder.parent, f".{cell.folder.name}.lock", cell.folder):
        try:
            return validate(cell, 1, search.objectives, look)
        except UserError:
            if (cell.folder / "faults").is_dir():
                raise optuna.TrialPruned("NaN or infinities") from None
            raise
        except (KeyboardInterrupt, Interrupted):
            trial.study.enqueue_trial(trial.params)  # the next start goes on with it
            raise


def _suggest(trial: Any, key: str, values: Range | Sequence[Any]) -> Any:
    if not isinstance(values, Range):
        texts = [text_of(value) for value in values]
        return values[texts.index(trial.suggest_categorical(key, texts))]
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(key, values.low, values.high, log=values.log)
    suggested = trial.suggest_float(key, values.low, values.high, log=values.log)
    return float(f"{suggested:.4g}")


def validate(
    cell: Cell,
    devices: int,
    objectives: Sequence[Objective],
    look: Callable[[dict[str, float]], None] | None = None,
) -> list[float]:
    """Train (or resume) a cell; its figures, whose record ends it. `look` sees monitored rows."""
    from lightning.pytorch.callbacks import LambdaCallback

    def show(*_: object) -> None:
        row = Run(cell.folder).metrics()[-1]
        if look is not None and ({"monitor", *LABEL_FREE} & set(row)):
            look(row)

    begun = time.perf_counter()
    with silence():
        run = train_cell(cell, devices, [LambdaCallback(on_train_epoch_end=show)])
    last = {key: value for row in run.metrics() for key, value in row.items()}
    last["seconds"] = time.perf_counter() - begun
    if "alpha_req" in last:
        last["alpha_req_distance"] = abs(last["alpha_req"] - 1)
    if missing := [each.name for each in objectives if each.name not in last]:
        known = ", ".join(last)
        raise UserError(f"training logs no {missing[0]}, which is an objective. There are {known}.")
    names = [f"{PROTOCOL} {each.name}" for each in objectives]
    if names[0] not in scores_of(run):
        run.record([Score(PROTOCOL, o.name, last[o.name], split="train") for o in objectives])
    return [scores_of(run)[name] for name in names]
