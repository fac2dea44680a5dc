"""One training step: seeding, metrics, precision, runaway numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from macl.core.errors import UserError
from macl.core.seeding import mix
from macl.losses import ContrastiveLoss, LossOutput
from macl.losses.objectives import FUNCTIONS, PairFunction
from macl.training.fit import train
from macl.training.module import ContrastiveModule
from tiny import HERE, METHODS, assert_same, recipe, state_of

QUICK = ("epochs=1", "data.limit=70", "monitor_every=0")
"""Two steps."""


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What every training step is seeded with."""
    seen: list[int] = []
    step = ContrastiveModule.training_step

    def noting(self: ContrastiveModule, batch: Any, batch_idx: int) -> torch.Tensor:
        seen.append(torch.initial_seed())
        return step(self, batch, batch_idx)

    monkeypatch.setattr(ContrastiveModule, "training_step", noting)
    return seen


def test_every_step_is_seeded_by_its_position(tmp_path: Path, seeds: list[int]) -> None:
    train(
        recipe(*QUICK, "epochs=2", "seed=7", "accumulate_grad_batches=2"),
        tmp_path / "run",
        compute=HERE,
    )
    assert seeds == [mix(7, position, 0) for position in range(4)]


def test_runs_repeat_and_seeds_matter(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(len(name))  # whatever the caller did before
        run = train(recipe(*QUICK, f"seed={seed}"), tmp_path / name, compute=HERE)
        return load_file(run.folder / "encoder.safetensors")

    one, two, other = weights("one", 0), weights("again", 0), weights("other", 1)
    assert_same(one, two)
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_a_row_has_the_metrics_of_its_step(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[LossOutput] = []
    evaluate = ContrastiveLoss.evaluate

    def noting(self: ContrastiveLoss, *given: Any, **more: Any) -> LossOutput:
        outputs.append(evaluate(self, *given, **more))
        return outputs[-1]

    monkeypatch.setattr(ContrastiveLoss, "evaluate", noting)
    run = train(recipe(*QUICK, *METHODS[method]), tmp_path / "run", compute=HERE)
    row, last = run.metrics()[-1], outputs[len(outputs) // 2 :]  # of the second of two steps
    assert (row["step"], row["epoch"]) == (2, 0)
    parts = [{"loss": one.loss.detach(), **one.metrics()} for one in last]
    expected = {name: sum(float(part[name]) for part in parts) / len(parts) for name in parts[0]}
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["64", "bf16", "16"])
def test_every_precision_trains_and_is_monitored(
    method: str, precision: str, tmp_path: Path
) -> None:
    made = recipe(*QUICK, "monitor_every=1", f"precision={precision}", *METHODS[method])
    run = train(made, tmp_path / "run", compute=HERE)
    rows = run.metrics()
    assert all(torch.tensor(row["loss"]).isfinite() for row in rows)
    assert "monitor" in rows[-1]
    weight = state_of(run)["state_dict"]["method.encoder.conv1.weight"]
    assert weight.dtype == (torch.float64 if precision == "64" else torch.float32)
    test = run.modality.load(made.data, "test")
    assert run.embed(test).dtype == torch.float32


def test_diverging_numbers_stop_the_run(tmp_path: Path) -> None:
    made = recipe("optimizer.name=sgd", "optimizer.lr=1e30", "save_every=1", "monitor_every=0")
    with pytest.raises(
        UserError, match=r"stopped at step \d+ \(epoch 0\).*learning rate.*gradient_clip=1"
    ):
        train(made, tmp_path / "run", compute=HERE)


def test_a_loss_that_is_not_a_number_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = PairFunction(lambda x: x * math.nan)
    monkeypatch.setitem(FUNCTIONS, "nll_over_scale", broken)
    with pytest.raises(UserError, match=r"stopped at step 0 .*the loss became nan"):
        train(recipe(*QUICK), tmp_path / "run", compute=HERE)


def test_accumulation_is_one_step_of_the_mean_gradient(tmp_path: Path) -> None:
    """Two batches, one optimizer step, the schedule counted in optimizer steps."""
    made = recipe(*QUICK, "accumulate_grad_batches=2", "data.limit=140", "schedule.warmup_epochs=0")
    run = train(made, tmp_path / "run", compute=HERE)
    state = state_of(run)
    assert state["global_step"] == 2
    assert state["lr_schedulers"][0]["last_epoch"] == 2
    assert run.metrics()[-1]["lr"] == pytest.approx(made.optimizer.lr / 2)  # the second of two


@pytest.mark.parametrize(("accumulate", "steps"), [(1, [10, 20, 25]), (2, [10, 13])])
def test_rows_come_every_ten_steps_and_at_the_end_of_an_epoch(
    accumulate: int, steps: list[int], tmp_path: Path
) -> None:
    made = recipe(*QUICK, "data.limit=100", "batch_size=4", f"accumulate_grad_batches={accumulate}")
    run = train(made, tmp_path / "run", compute=HERE)
    assert [row["step"] for row in run.metrics()] == steps


def test_gradients_are_clipped_when_asked(tmp_path: Path) -> None:
    """SGD without momentum or decay: two steps cannot go further than lr · clip each."""
    quick = (*QUICK, "optimizer={name: sgd, lr: 1.0, momentum: 0, weight_decay: 0}")
    made = recipe(
        *quick, "schedule.name=constant", "schedule.warmup_epochs=0", "gradient_clip=1e-3"
    )
    start = recipe(
        *quick, "schedule.name=constant", "schedule.warmup_epochs=0", "gradient_clip=1e-20"
    )
    runs = [train(r, tmp_path / str(r.gradient_clip), compute=HERE) for r in (made, start)]
    moved, still = (state_of(run)["state_dict"] for run in runs)
    names = [n for n in moved if "running" not in n and "tracked" not in n]
    distance = sum(float((moved[n] - still[n]).square().sum()) for n in names) ** 0.5
    assert 0 < distance <= 2e-3 * 1.01
