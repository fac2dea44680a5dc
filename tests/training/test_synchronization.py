"""Off the CPU a step reads nothing back from the device, and a logged row does so once.

There is no accelerator here: tensors are on the CPU, and the code takes them for a device where
reading is expensive. Every operation that would wait for such a device is counted.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forking import Forked
from macl import distributed
from macl.caching import encode_in_chunks
from macl.core.errors import UserError
from macl.methods import Method
from macl.runs import Run
from macl.training import callbacks, faults
from macl.training import module as engine
from macl.training.fit import train
from macl.training.module import ContrastiveModule
from tiny import HERE, METHODS, environment, recipe, run_ranks, state_of

READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal"}
"""Operations whose result, or its shape, has to come back to the host."""
OTHERS = ("/macl/losses/", "/macl/modalities/", "/torch/optim/")
"""Code that reads on a CPU, where it is free: on an accelerator its reads are counted by
`test_steps_on_an_accelerator_wait_for_nothing`. torch's optimizers keep step counts on the CPU."""
STEPS = ["digits", "digits method=moco method.queue_size=48", "atlas"]
MORE_STEPS = [
    "topics", "digits-captions", "digits method=nnclr method.queue_size=48",
    *(f"digits loss={name}" for name in ("isogclr", "supcon", "siglip", "hcl", "tempnet", "dclw")),
    "digits loss=info-nce loss.negatives=cross", "digits loss=info-nce loss.gather=ring",
]  # fmt: skip
"""Recipes for tests/training/accelerator_steps.py: methods, losses, modalities."""
BETWEEN_HOSTS = distributed._between_hosts.__name__
"""Takes integers of the host and returns such: no device is involved."""
LONG = ("epochs=1", "monitor_every=0", "batch_size=8", "save_every=1000")
"""25 steps: rows after the 10th, the 20th and the last."""
CASES = [METHODS["moco"], ("loss=isogclr", "loss.gather=ring")]
"""What two processes train."""


class Reads:
    """Where values were read, by their step."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.places: list[tuple[int, str]] = []

    def note(self) -> None:
        if self.step is None:
            return
        stack = traceback.extract_stack()
        ours = [f for f in stack if "/macl/" in f.filename or "/torch/optim/" in f.filename]
        if not ours or ours[-1].name == BETWEEN_HOSTS:
            return
        if not any(part in ours[-1].filename for part in OTHERS):
            self.places.append((self.step, Path(ours[-1].filename).name))


class Operations(TorchDispatchMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in READS:
            self.reads.note()
        return func(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    """`tolist` and `numpy` of a CPU tensor are no operations."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            self.reads.note()
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for an accelerator."""
    take_for_accelerator(monkeypatch)


def take_for_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine, callbacks, faults):
        monkeypatch.setattr(module, "checks_every_step", lambda device: False)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Reads from the start of a batch to the end of the callbacks after it."""
    reads = Reads()
    step, write = ContrastiveModule.training_step, callbacks.SaveLast.on_train_batch_end

    def begin(self: ContrastiveModule, batch: Any, batch_idx: int) -> Tensor:
        reads.step = batch_idx
        return step(self, batch, batch_idx)

    def end(self: Any, *arguments: Any) -> None:
        write(self, *arguments)
        reads.step = None

    monkeypatch.setattr(ContrastiveModule, "training_step", begin)
    monkeypatch.setattr(callbacks.SaveLast, "on_train_batch_end", end)
    with Operations(reads), Methods(reads):
        yield reads


@pytest.mark.slow
@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)
def test_two_processes_read_no_more_than_one(tmp_path: Path) -> None:
    """Neither batch sizes nor signals to stop come from a device."""
    for done in run_ranks("training/synchronized_ranks.py", tmp_path):
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert [case["steps"] for case in found] == [[9, 19, 24]] * len(CASES)
        assert {file for case in found for file in case["files"]} == {"faults.py"}


@pytest.mark.parametrize("cases", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)])
def test_steps_on_an_accelerator_wait_for_nothing(cases: list[str]) -> None:
    """Views, encoder, loss, gradient and the row of metrics, on a pretended device."""
    done = Forked("training/accelerator_steps.py", *cases, environment=environment()).wait()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == cases
    for case, step in found.items():
        assert step["operators"] > 100, case
        assert "alignment" in step["row"], case
        assert step["copies"] == [], case
        # transformers asks in every forward whether any token is padding.
        assert set(step["reads"]) <= {"_local_scalar_dense in transformers"}, case


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("device")
def test_a_row_is_one_transfer_and_other_steps_have_none(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as reads:
        run = train(recipe(*LONG, *METHODS[method]), tmp_path / "run", compute=HERE)
    assert reads.places == [(9, "faults.py"), (19, "faults.py"), (24, "faults.py")]
    assert [row["step"] for row in run.metrics()] == [10, 20, 25]


def test_the_count_notices_a_check_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, where it is free."""
    with counted(monkeypatch) as reads:
        train(recipe(*LONG), tmp_path / "run", compute=HERE)
    assert {step for step, _ in reads.places} == set(range(25))


@pytest.mark.usefixtures("device")
def test_checks_at_rows_change_nothing_in_what_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = train(recipe(*LONG, *METHODS["moco"]), tmp_path / "later", compute=HERE)
    monkeypatch.undo()
    at_once = train(recipe(*LONG, *METHODS["moco"]), tmp_path / "at once", compute=HERE)
    assert later.metrics() == at_once.metrics()
    one, two = (state_of(run)["state_dict"] for run in (later, at_once))
    assert all(torch.equal(one[name], two[name]) for name in one)


def spoil(monkeypatch: pytest.MonkeyPatch, bad_step: int) -> None:
    """One sample of a step gets an infinite embedding."""
    count = iter(range(10_000))

    def encode(forward: Any, views: Any, chunk: int | None, method: Method) -> tuple[Tensor, ...]:
        embeddings = encode_in_chunks(forward, views, chunk, method)
        if next(count) == bad_step:
            embeddings[0].data[3, 0] = float("inf")
        return embeddings

    monkeypatch.setattr(engine, "encode_in_chunks", encode)


@pytest.mark.parametrize(("save_every", "saved"), [(1000, None), (4, 8)])
@pytest.mark.usefixtures("device")
def test_nothing_is_saved_after_a_bad_step(
    save_every: int, saved: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 8 is bad: noticed at the row after step 9, or before the checkpoint after step 11."""
    spoil(monkeypatch, 8)
    monkeypatch.setattr(engine, "LOG_EVERY", 10 if saved is None else 100)
    made = recipe(*LONG, f"save_every={save_every}")
    with pytest.raises(UserError, match=r"stopped at step 8 \(epoch 0\): the embeddings of 1 of 8"):
        train(made, tmp_path, compute=HERE)
    file = Run(tmp_path).last_checkpoint
    assert file.is_file() == (saved is not None)
    if saved is not None:
        assert state_of(Run(tmp_path))["global_step"] == saved
    fault = json.loads((tmp_path / "faults" / "step-8-rank-0.json").read_text())
    assert [i for i, sample in enumerate(fault["samples"]) if sample["nonfinite"]] == [3]


@pytest.mark.usefixtures("device")
def test_the_monitor_keeps_no_encoder_of_a_bad_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 2)
    made = recipe(*LONG, "monitor_every=1", "monitor_steps=4")
    with pytest.raises(UserError, match="stopped at step 2"):
        train(made, tmp_path, compute=HERE)
    assert not (tmp_path / "best").exists()
