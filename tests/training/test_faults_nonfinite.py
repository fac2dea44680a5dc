"""Steps whose numbers are not finite: the run stops, or goes on without them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from macl.caching import encode_in_chunks
from macl.core.errors import UserError
from macl.methods import Method
from macl.runs import Run
from macl.training import module as engine
from macl.training.faults import MOST_SKIPPED
from macl.training.fit import train
from tiny import HERE, METHODS, assert_same, recipe, state_of

QUICK = ("epochs=1", "monitor_every=0", "save_every=1")
"""Six steps."""

Embeddings = tuple[Tensor, ...]
BAD_ROW = 3


def poisoned_row(embeddings: Embeddings) -> Embeddings:
    z = embeddings[-1].clone()
    z[BAD_ROW, 0] = float("inf")
    return (*embeddings[:-1], z)


def poisoned_gradient(embeddings: Embeddings) -> Embeddings:
    embeddings[-1].register_hook(lambda gradient: gradient * float("nan"))
    return embeddings


Spoil = Callable[[Callable[[Embeddings], Embeddings], "range | list[int]"], list[dict[str, Any]]]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Spoil the embeddings of some steps; returns the method's state at the start of each step."""

    def prepare(how: Callable[[Embeddings], Embeddings], steps: range | list[int]) -> Any:
        states: list[dict[str, Any]] = []

        def encode(forward: Any, views: Any, chunk: int | None, method: Method) -> Embeddings:
            states.append({name: value.clone() for name, value in method.state_dict().items()})
            embeddings = encode_in_chunks(forward, views, chunk, method)
            return how(embeddings) if len(states) - 1 in steps else embeddings

        monkeypatch.setattr(engine, "encode_in_chunks", encode)
        return states

    return prepare


def test_a_bad_sample_stops_the_run_and_is_named(tmp_path: Path, spoil: Spoil) -> None:
    spoil(poisoned_row, [2])
    with pytest.raises(UserError, match=r"step 2 \(epoch 0\): the embeddings of 1 of 32.*skip"):
        train(recipe(*QUICK), tmp_path, compute=HERE)
    assert state_of(Run(tmp_path))["global_step"] == 2
    fault = json.loads((tmp_path / "faults" / "step-2-rank-0.json").read_text())
    assert (fault["step"], fault["epoch"]) == (2, 0)
    samples = fault["samples"]
    names = Run(tmp_path).modality.load(recipe(*QUICK).data, "train").names
    assert len({sample["index"] for sample in samples}) == 32
    assert all(sample["name"] == names[sample["index"]] for sample in samples)
    assert [i for i, sample in enumerate(samples) if sample["nonfinite"]] == [BAD_ROW]


def test_bad_gradients_stop_the_run_before_the_weights_move(tmp_path: Path, spoil: Spoil) -> None:
    states = spoil(poisoned_gradient, [2])
    with pytest.raises(UserError, match="the gradients are not finite"):
        train(recipe(*QUICK), tmp_path, compute=HERE)
    stored = state_of(Run(tmp_path))["state_dict"]
    weight = "encoder.conv1.weight"
    assert torch.equal(stored[f"method.{weight}"], states[2][weight])
    fault = json.loads((tmp_path / "faults" / "step-2-rank-0.json").read_text())
    assert not any(sample["nonfinite"] for sample in fault["samples"])


@pytest.mark.parametrize("how", [poisoned_row, poisoned_gradient])
@pytest.mark.parametrize("method", ["simclr", "nnclr"])
def test_a_skipped_step_changes_nothing(
    how: Callable[[Embeddings], Embeddings],
    method: str,
    tmp_path: Path,
    spoil: Spoil,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Weights, running statistics and queue; the steps around it count, and so does the run."""
    states = spoil(how, [2])
    made = recipe(*QUICK, *METHODS[method], "on_nonfinite=skip", "gradient_clip=1")
    run = train(made, tmp_path, compute=HERE)
    assert run.is_finished
    assert state_of(run)["global_step"] == len(states) == 6
    assert_same(states[3], states[2])
    for before, after in ((1, 2), (3, 4)):
        assert not torch.equal(
            states[after]["encoder.conv1.weight"], states[before]["encoder.conv1.weight"]
        )
    assert "step 2 skipped" in caplog.text
    assert [file.name for file in (tmp_path / "faults").iterdir()] == ["step-2-rank-0.json"]


def test_the_keys_of_a_skipped_step_do_not_enter_the_queue(tmp_path: Path, spoil: Spoil) -> None:
    """Those of the step before it do, though they were still waiting when it began."""
    states = spoil(lambda embeddings: poisoned_gradient(embeddings[::-1])[::-1], [2])
    train(recipe(*QUICK, *METHODS["moco"], "on_nonfinite=skip"), tmp_path, compute=HERE)
    pointers = [int(state["queue.pointer"]) for state in states]
    assert pointers[:5] == [0, 32, 16, 16, 0]  # 32 keys a step into 48 places
    assert torch.equal(states[3]["queue.rows"], states[2]["queue.rows"])


def test_accumulated_batches_are_skipped_together(tmp_path: Path, spoil: Spoil) -> None:
    states = spoil(poisoned_gradient, [2])
    run = train(
        recipe(*QUICK, "on_nonfinite=skip", "accumulate_grad_batches=2"), tmp_path, compute=HERE
    )
    assert_same(states[4], states[2])
    fault = json.loads((run.folder / "faults" / "step-1-rank-0.json").read_text())
    assert len(fault["samples"]) == 64


def test_a_run_that_skips_everything_stops(tmp_path: Path, spoil: Spoil) -> None:
    spoil(poisoned_row, range(99))
    made = recipe(*QUICK, "batch_size=8", "on_nonfinite=skip")
    with pytest.raises(UserError, match=rf"step {MOST_SKIPPED} .*after {MOST_SKIPPED} steps in a"):
        train(made, tmp_path, compute=HERE)


def test_single_steps_may_be_skipped_again_and_again(tmp_path: Path, spoil: Spoil) -> None:
    spoil(poisoned_row, range(0, 99, 2))
    train(recipe(*QUICK, "batch_size=8", "on_nonfinite=skip"), tmp_path, compute=HERE)
    assert len(list((tmp_path / "faults").iterdir())) > MOST_SKIPPED
