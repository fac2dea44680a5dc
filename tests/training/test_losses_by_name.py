"""Every loss of the recipes trains, resumes with its state, is compared and diagnosed by name."""

from __future__ import annotations

import math
import signal
import warnings
from pathlib import Path

import pytest
from test_resume import FRAGILE, MIDDLE, assert_same_run, interrupt

import recipe_texts
from macl import modalities
from macl.core.errors import UserError
from macl.evaluation.diagnose import diagnose_run
from macl.experiments import running
from macl.experiments.rows import tabulate
from macl.losses.output import is_bin
from macl.modalities.protocols import Dataset
from macl.recipes import Recipe
from macl.recipes.losses import LOSSES
from macl.recipes.schema import section_name
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, recipe, state_of

NAMES = [str(section_name(kind)) for kind in LOSSES]
SHORT = ("epochs=1", "data.limit=64", "monitor_every=0", "schedule.warmup_epochs=0")
OPTIONS = {"fastclip": ("loss.rho=1",), "tempnet": ("loss.rho=1",)}
"""ρ below log K of the tiny batches."""

pytestmark = pytest.mark.filterwarnings("error:rho")


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_trains_and_is_diagnosed(name: str, tmp_path: Path) -> None:
    made = recipe(*SHORT, f"loss={name}", *OPTIONS.get(name, ()))
    run = train(made, tmp_path, compute=HERE)
    rows = run.metrics()
    assert rows
    assert all(math.isfinite(value) for row in rows for value in row.values())
    before = state_of(run)["state_dict"]
    found = diagnose_run(run, items=64)
    assert {f.name for f in found.findings} >= {"gradient reduction", "temperature"}
    assert math.isfinite(found["temperature"].evidence["temperature"])
    assert math.isfinite(found["gradient reduction"].evidence["mean_carried"])
    state = {k: v for k, v in before.items() if k.startswith("method.loss.state.")}
    assert all(tensor.shape[1] == 64 for tensor in state.values())
    assert bool(state) == (name in ("sogclr", "isogclr", "fastclip", "tempnet"))


@pytest.mark.parametrize(
    "given",
    [
        ("loss=isogclr",),
        ("loss=sogclr", "method=moco", "method.queue_size=48", "method.bn_splits=2"),
    ],
    ids=" ".join,
)
def test_an_interrupted_run_continues_with_its_state(
    given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loss with state goes through a state_dict in tests/losses; here through a file."""
    made = recipe(*FRAGILE, *given)
    whole = train(made, tmp_path / "whole", compute=HERE)
    interrupt(made, tmp_path / "cut", signal.SIGTERM, MIDDLE, monkeypatch)
    assert_same_run(train(made, tmp_path / "cut", resume=True, compute=HERE), whole)
    assert state_of(whole)["state_dict"]["method.loss.state.log_u"].isfinite().sum() > 100


def test_other_data_is_refused_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(*FRAGILE, "loss=isogclr")
    interrupt(made, tmp_path, signal.SIGTERM, MIDDLE, monkeypatch)
    with pytest.raises(UserError, match=r"data\.limit: 200 there, 190 now"):
        train(recipe(*FRAGILE, "loss=isogclr", "data.limit=190"), tmp_path, resume=True)


def test_supcon_needs_labels(tmp_path: Path) -> None:
    made = recipe(*SHORT, "loss=supcon")
    data = unlabeled(made)
    with pytest.raises(UserError, match="SupCon learns from labels and the training data has none"):
        train(made, tmp_path / "run", compute=HERE, dataset=data)
    assert not (tmp_path / "run").exists()


def test_the_spread_of_individual_temperatures_is_in_no_table(tmp_path: Path) -> None:
    given = [*SHORT, "encoder.width=8", "batch_size=32", "evaluation.protocols=[knn]"]
    cells = recipe_texts.plan("digits", ["loss=macl,isogclr"], 1, given, tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rho")  # the defaults are for larger batches
        running.run_cells(cells)
    assert len([name for name in Run(cells[1].folder).metrics()[-1] if is_bin(name)]) == 10
    assert not any(is_bin(row.metric) for row in tabulate(cells))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("loss.gamma=0", "loss.gamma"),
        ("loss.rho=-1", "loss.rho"),
        ("loss.size=5", "size"),
        ("loss.beta=2", "loss.beta"),
    ],
)
def test_a_wrong_argument_is_reported_before_training(override: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        recipe("loss=isogclr", override)


def unlabeled(made: Recipe) -> Dataset:
    """The recipe's training data without its labels."""
    data = modalities.get(made.modality).load(made.data, "train")
    data.labels = None
    return data
