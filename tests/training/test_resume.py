"""An interrupted run ends as an uninterrupted one, to the bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import recipe_texts
from macl import modalities
from macl.core.errors import UserError
from macl.core.signals import Interrupted
from macl.recipes import Recipe
from macl.runs import Run
from macl.training.fit import train
from shared import trained
from tiny import (
    HERE,
    METHODS,
    TINY,
    Command,
    Done,
    assert_same,
    recipe,
    run_commands,
    state_of,
)

FRAGILE = ("encoder.width=null", "encoder.name=fragile:resnet", "encoder.allow_import=true")
SAVED, MIDDLE, LAST = 3, 5, 6
"""Steps of the first epoch: a checkpoint falls due, none does, the epoch ends."""


def assert_same_run(one: Run, two: Run) -> None:
    """Every weight, buffer, moment and counter, and every line of the metrics."""
    assert one.metrics_file.read_text() == two.metrics_file.read_text()
    assert_same(load_file(one.folder / "encoder.safetensors"),
                load_file(two.folder / "encoder.safetensors"))  # fmt: skip
    best = [load_file(run.folder / "best" / "encoder.safetensors") for run in (one, two)]
    assert_same(*best)
    states = [state_of(run) for run in (one, two)]
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step"):
        assert_same(states[0][name], states[1][name], name)


@pytest.fixture(scope="module")
def whole() -> dict[str, Run]:
    """Uninterrupted runs."""
    return {name: trained(recipe(*FRAGILE, *overrides)) for name, overrides in METHODS.items()}


def interrupt(
    made: Recipe, folder: Path, number: signal.Signals, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train until a signal comes in `step`."""
    with monkeypatch.context() as patch:
        patch.setenv("FRAGILE_AT", str(step))
        patch.setenv("FRAGILE_SIGNAL", str(int(number)))
        handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with pytest.raises(Interrupted, match=number.name):
            train(made, folder, compute=HERE)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


@pytest.mark.parametrize(
    ("method", "number", "step"),
    [
        *((method, signal.SIGINT, MIDDLE) for method in METHODS),
        ("simclr", signal.SIGTERM, SAVED),
        ("simclr", signal.SIGTERM, LAST),
    ],
)
def test_a_signal(
    method: str,
    number: signal.Signals,
    step: int,
    whole: dict[str, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = recipe(*FRAGILE, *METHODS[method])
    interrupt(made, tmp_path, number, step, monkeypatch)
    assert state_of(Run(tmp_path))["global_step"] == step
    assert not Run(tmp_path).is_finished
    with pytest.warns(UserWarning, match="unfinished"):
        _ = Run(tmp_path).encoder
    assert_same_run(train(made, tmp_path, resume=True, compute=HERE), whole[method])


def train_command(folder: Path, method: str, number: signal.Signals) -> Command:
    """`macl train` that is struck by a signal in mid-epoch."""
    overrides = [*TINY, *FRAGILE, *METHODS[method]]
    struck = {"FRAGILE_AT": str(MIDDLE), "FRAGILE_SIGNAL": str(int(number))}
    return Command(["train", "digits", *overrides, "--out", folder], struck)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Done]]:
    """A run killed with -9, and Ctrl-C."""
    folder = tmp_path_factory.mktemp("stopped")
    folders = {name: folder / name for name in ("killed", "ctrl-c")}
    done = run_commands(
        train_command(folders["killed"], "moco", signal.SIGKILL),
        train_command(folders["ctrl-c"], "simclr", signal.SIGINT),
    )
    return dict(zip(folders, zip(folders.values(), done, strict=True), strict=True))


@pytest.mark.slow
def test_kill_9_in_mid_epoch(whole: dict[str, Run], stopped: dict[str, tuple[Path, Done]]) -> None:
    """The process has no chance to save: the run goes on from the checkpoint before."""
    folder, done = stopped["killed"]
    assert done.code == -signal.SIGKILL
    run = Run(folder)
    assert state_of(run)["global_step"] == SAVED
    assert_same_run(train(run.recipe, folder, resume=True, compute=HERE), whole["moco"])


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(
    whole: dict[str, Run], stopped: dict[str, tuple[Path, Done]]
) -> None:
    folder, done = stopped["ctrl-c"]
    assert done.code == 130
    assert f"stopped by SIGINT; continue with: macl train {folder} --resume" in done.stderr
    assert "Traceback" not in done.stderr
    run = Run(folder)
    assert state_of(run)["global_step"] == MIDDLE
    assert_same_run(train(run.recipe, folder, resume=True, compute=HERE), whole["simclr"])


def test_killed_before_the_first_checkpoint(
    whole: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing to go on from: the run starts again, and its metrics with it."""
    made = recipe(*FRAGILE)
    interrupt(made, tmp_path, signal.SIGINT, 2, monkeypatch)
    Run(tmp_path).last_checkpoint.unlink()
    assert_same_run(train(made, tmp_path, resume=True, compute=HERE), whole["simclr"])


def test_twice_interrupted_in_one_epoch(
    whole: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(*FRAGILE, *METHODS["moco"])
    interrupt(made, tmp_path, signal.SIGINT, 2, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setenv("FRAGILE_AT", "2")
        patch.setenv("FRAGILE_SIGNAL", str(int(signal.SIGTERM)))
        with pytest.raises(Interrupted):
            train(made, tmp_path, resume=True, compute=HERE)
    assert state_of(Run(tmp_path))["global_step"] == 4
    assert_same_run(train(made, tmp_path, resume=True, compute=HERE), whole["moco"])


def test_accumulation_and_a_temperature_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients under way are in no checkpoint, so a run stops between optimizer steps; and the
    step that a temperature follows is in the checkpoint.
    """
    made = recipe(
        *FRAGILE,
        "accumulate_grad_batches=2",
        "loss=nt-xent",
        "loss.temperature={name: cosine, tau_min: 0.1, tau_max: 1.0, period: 5}",
    )
    uninterrupted = train(made, tmp_path / "whole", compute=HERE)
    assert state_of(uninterrupted)["global_step"] == 6
    interrupt(made, tmp_path / "cut", signal.SIGINT, 3, monkeypatch)
    state = state_of(Run(tmp_path / "cut"))
    assert state["global_step"] == 2
    assert int(state["state_dict"]["method.loss.temperature.step"]) == 2
    resumed = train(made, tmp_path / "cut", resume=True, compute=HERE)
    assert_same_run(resumed, uninterrupted)


def test_with_reading_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(*FRAGILE, "workers=1", "monitor_every=2")
    uninterrupted = train(made, tmp_path / "whole", compute=HERE)
    interrupt(made, tmp_path / "cut", signal.SIGINT, MIDDLE, monkeypatch)
    resumed = train(made, tmp_path / "cut", resume=True, compute=HERE)
    assert_same_run(resumed, uninterrupted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-8], "80 samples then, 72 now"),
        (lambda lines: lines[::-1], "as many samples, but other ones or in another order"),
    ],
)
def test_other_data_than_it_began_with_is_refused(
    change: Callable[[list[str]], list[str]],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another vocabulary would not fit the weights; the same one would hide that all is moved."""
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    lines = [f"sentence {i} of {number}" for i in range(8) for number in "abcdefghij"]
    file, folder = tmp_path / "lines.txt", tmp_path / "run"
    file.write_text("\n".join(lines))
    tiny = ("encoder.width=16", "encoder.layers=1", "encoder.vocabulary=100", "batch_size=8")
    made = recipe_texts.load("topics", [*tiny, f"data.path={file}", "epochs=1", "monitor_every=0"])
    with monkeypatch.context() as patch:
        patch.setattr(modalities.get("text"), "save_encoder", fail)
        with pytest.raises(RuntimeError, match="no room"):
            train(made, folder, compute=HERE)
    file.write_text("\n".join(change(lines)))
    with pytest.raises(UserError, match=f"not what the run began with: {words}"):
        train(made, folder, resume=True, compute=HERE)
    file.write_text("\n".join(lines))
    assert train(made, folder, resume=True, compute=HERE).is_finished


def fail(*_: object) -> None:
    raise RuntimeError("no room")
