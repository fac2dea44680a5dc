"""Data of unknown length, and training by steps."""

from __future__ import annotations

import itertools
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_loader import Numbers

from macl.core.errors import UserError
from macl.core.signals import Interrupted
from macl.recipes import Recipe
from macl.runs import Run
from macl.training.fit import train
from macl.training.loader import ResumableLoader
from macl.training.stream import ROWS, Stream, StreamBatches
from small_shards import color_shards
from tiny import HERE, TINY, assert_same, forked_macl, recipe, state_of

FRAGILE = ("encoder.width=null", "encoder.name=fragile:resnet", "encoder.allow_import=true")
SMALL = ("data.limit=null", "batch_size=8", "monitor_every=0", "stream=true", "workers=0")


class Part(Numbers):
    """Item i of part p is its position in the stream."""

    has_negatives = False

    def __init__(self, number: int, length: int) -> None:
        super().__init__(length)
        self.number, self.names = number, tuple(f"{number}/{i}" for i in range(length))

    def __getitem__(self, index: int) -> int:
        return ROWS * self.number + index


def opened(sizes: list[int], number: int) -> Part | None:
    return Part(number, sizes[number]) if number < len(sizes) else None


def batches(sizes: list[int], size: int = 4, count: int = 9, **options: Any) -> StreamBatches:
    options = {"seed": 0, "rank": 0, "world": 1} | options
    return StreamBatches(Stream(partial(opened, sizes)), size, count=count, **options)


def shards(tmp_path: Path, *overrides: str) -> Recipe:
    pattern = tmp_path / "shards" / "colors-{0..2}.tar"
    if not pattern.parent.is_dir():
        color_shards(pattern.parent)
    return recipe(*SMALL, "data.source=auto", f"data.path={pattern}", "steps=9", *overrides)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    share=st.integers(1, 3),
    world=st.integers(1, 3),
    start=st.integers(0, 12),
)
def test_a_pass_has_every_sample_once_on_one_rank(
    sizes: list[int], share: int, world: int, start: int
) -> None:
    size, each = share * world, sum(sizes) // (share * world)
    if each == 0:
        return
    ranks = [batches(sizes, size, 2 * each, rank=r, world=world) for r in range(world)]
    together = [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert together == list(batches(sizes, size, 2 * each))
    every = {ROWS * part + row for part, n in enumerate(sizes) for row in range(n)}
    for turn in (together[:each], together[each:]):
        seen = list(itertools.chain(*turn))
        assert len(seen) == len(set(seen)) == each * size
        assert set(seen) <= every
        assert [p // ROWS for p in seen] == sorted(p // ROWS for p in seen)
    # From any batch on, without opening what lies before it.
    start = min(start, 2 * each - 1)
    taken = batches(sizes, size, 2 * each)
    list(taken)
    resumed = batches(sizes, size, 2 * each)
    resumed.resume(taken.state(start))
    assert list(resumed) == together[start:]


def test_the_order_depends_on_the_seed_and_the_pass() -> None:
    one, two = list(batches([12], count=6)), list(batches([12], count=6, seed=1))
    assert one[:3] != one[3:]
    assert one != two
    epochs = batches([12], count=2)
    assert [*epochs, *epochs, *epochs] == one


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_ahead_does_not_count(workers: int) -> None:
    def loader() -> ResumableLoader:
        chosen = batches([5, 6, 7, 8])
        return ResumableLoader(chosen.stream, chosen, workers)

    whole = [batch.inputs.tolist() for batch in loader()]
    stopped = loader()
    assert [b.inputs.tolist() for b in itertools.islice(iter(stopped), 3)] == whole[:3]
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch.inputs.tolist() for batch in resumed] == whole[3:]
    assert resumed.state_dict()["done"] == 0


def test_parts_are_opened_as_they_are_needed() -> None:
    numbers: list[int] = []

    def part(number: int) -> Part:
        numbers.append(number)
        return Part(number, 4)  # and so on without end

    chosen = StreamBatches(Stream(part), 4, 0, 0, 1, 100)
    reading = iter(chosen)
    for _ in range(3):
        next(reading)
    assert max(numbers) <= 3  # the fourth in advance
    reading.close()
    later = StreamBatches(Stream(part), 4, 0, 0, 1, 100)
    numbers.clear()
    later.resume({**chosen.state(0), "place": [0, 50, 0], "data": [*chosen._mark((0, 50, 0))]})
    next(iter(later))
    assert min(numbers) >= 50


def test_shards_that_are_added_are_read_and_others_are_refused() -> None:
    taken = batches([8, 8])
    list(itertools.islice(iter(taken), 3))
    grown = batches([8, 8, 8])
    grown.resume(taken.state(3))
    found = list(grown)
    assert [p // ROWS for p in itertools.chain(*found[:3])] == [1] * 4 + [2] * 8
    with pytest.raises(UserError, match="8 samples then, 9 now"):
        batches([8, 9]).resume(taken.state(3))
    with pytest.raises(UserError, match="8 samples then, 0 now"):
        batches([8]).resume(taken.state(3))


def test_a_stream_survives_pickling_and_knows_names() -> None:
    again = pickle.loads(pickle.dumps(Stream(partial(opened, [2, 3]))))
    assert again[ROWS + 2] == ROWS + 2
    assert again.name(ROWS + 2) == "1/2"


def test_too_little_data_is_named() -> None:
    with pytest.raises(UserError, match="less than batch_size=4 samples"):
        list(batches([1, 2]))
    with pytest.raises(UserError, match="no data"):
        batches([])
    with pytest.raises(UserError, match=r"batch_size=4.*3 processes"):
        batches([9], world=3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_stream_resumes_to_the_bit(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the ends of parts, of passes (every third step) and of epochs (every fourth)."""
    monkeypatch.setattr("macl.training.fit.EPOCH", 4)
    made = shards(tmp_path, *FRAGILE, f"workers={workers}")
    whole = train(made, tmp_path / "whole", compute=HERE)
    assert [row["step"] for row in whole.metrics()] == [4, 8, 9]
    for step in (4, 5):
        folder = tmp_path / f"cut-{step}"
        with monkeypatch.context() as patch:
            patch.setenv("FRAGILE_AT", str(step))
            patch.setenv("FRAGILE_SIGNAL", str(int(signal.SIGTERM)))
            with pytest.raises(Interrupted):
                train(made, folder, compute=HERE)
        assert state_of(Run(folder))["global_step"] == step
        again = train(made, folder, resume=True, compute=HERE)
        assert again.metrics_file.read_text() == whole.metrics_file.read_text()
        for name in ("state_dict", "optimizer_states", "lr_schedulers", "loops"):
            assert_same(state_of(again)[name], state_of(whole)[name], name)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_more_steps_continue_within_the_epoch(stream: str, tmp_path: Path) -> None:
    options = (f"stream={stream}", "schedule.name=constant", "schedule.warmup_epochs=0")
    whole = train(shards(tmp_path, *options, "steps=5"), tmp_path / "whole", compute=HERE)
    train(shards(tmp_path, *options, "steps=2"), tmp_path / "cut", compute=HERE)
    longer = shards(tmp_path, *options, "steps=5")
    cut = train(longer, tmp_path / "cut", resume=True, compute=HERE)
    assert_same(state_of(cut)["state_dict"], state_of(whole)["state_dict"])
    assert_same(state_of(cut)["loops"]["fit_loop"], state_of(whole)["loops"]["fit_loop"])
    assert cut.metrics()[-1] == whole.metrics()[-1]


def test_steps_bound_training_on_data_of_known_length(tmp_path: Path) -> None:
    """Six steps an epoch; the schedule is that of eight steps, and the last is logged."""
    made = recipe("steps=8", "epochs=50", "schedule.warmup_epochs=0.5", "monitor_every=1")
    run = train(made, tmp_path / "run", compute=HERE)
    rows = run.metrics()
    assert [(row["step"], row["epoch"]) for row in rows] == [(6, 0), (8, 1)]
    assert all({"loss", "monitor"} <= row.keys() for row in rows)
    assert rows[-1]["lr"] < rows[0]["lr"] < made.optimizer.lr
    before = run.metrics_file.stat().st_mtime_ns
    train(made, tmp_path / "run", resume=True, compute=HERE)  # there is nothing left to do
    assert run.metrics_file.stat().st_mtime_ns == before
    with pytest.raises(UserError, match="steps: 8 there, None now"):
        train(recipe("epochs=60"), tmp_path / "run", resume=True, compute=HERE)


def test_what_needs_the_number_of_samples_is_refused(tmp_path: Path) -> None:
    cases = {
        "loss=sogclr": "loss=sogclr or its guide keeps values for every sample",
        "loss.guide=somewhere": "loss=macl or its guide keeps values",
        "steps=null": "a stream has no epochs",
        "data.holdout=0.1": r"shares of all samples.*set data\.holdout=0",
        "data.limit=20": r"shares of all samples.*data\.limit=null",
    }
    for override, message in cases.items():
        with pytest.raises(UserError, match=message):
            train(shards(tmp_path, override), tmp_path / "run", compute=HERE)
    with pytest.raises(UserError, match="is for WebDataset shards"):
        train(recipe("stream=true", "steps=3", "data.limit=null"), tmp_path / "run", compute=HERE)


def test_a_stream_of_the_users_own_is_trained_on(tmp_path: Path) -> None:
    import macl
    from macl import modalities

    made = recipe("data.limit=null")
    digits = modalities.get("images").load(made.data, "train")

    def part(number: int) -> Any:
        rows = torch.arange(100 * number, 100 * (number + 1))
        return digits.select(rows) if number < 3 else None

    out, short = tmp_path / "run", {"schedule.warmup_epochs": 0}
    run = macl.train("digits", data=Stream(part), steps=12, batch_size=32, out=out, overrides=short)
    assert run.metrics()[-1]["step"] == 12


@pytest.mark.slow
def test_two_gloo_ranks_train_what_one_process_trains(tmp_path: Path) -> None:
    """So each takes the samples that the other does not: stopped in one process, then resumed."""
    made = shards(tmp_path)
    exact = (
        *SMALL, "data.source=auto", f"data.path={made.data.path}", "steps=9", "precision=64",
        "schedule.warmup_epochs=0",
        "encoder.width=null", "encoder={name: fragile:plain, allow_import: true}",
        "method.projector={widths: [same, 8], norm: none}",
        "views={preset: digits, size: 8, crop_scale: [1, 1], crop_ratio: [1, 1], jitter_p: 0, "
        "flip: 0}",
    )  # fmt: skip
    command = ("train", "digits", *TINY, *exact, "--out", tmp_path / "two", "--devices", "2")
    gloo = {"GLOO_SOCKET_IFNAME": "lo"}
    struck = {"FRAGILE_AT": "5", "FRAGILE_RANK": "1", "FRAGILE_SIGNAL": str(int(signal.SIGTERM))}
    done = forked_macl(*command, variables={**gloo, **struck})
    assert done.returncode == 130, done.stderr
    done = forked_macl(*command, "--resume", variables=gloo)
    assert done.returncode == 0, done.stderr
    alone = train(recipe(*exact), tmp_path / "one", compute=HERE)
    one, two = (load_file(tmp_path / name / "encoder.safetensors") for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-8, atol=1e-8, msg=name)
    assert state_of(alone)["global_step"] == state_of(Run(tmp_path / "two"))["global_step"] == 9
