"""Failures of the disk, the readers, another process, or the process itself."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from macl import modalities
from macl.core import worker_errors
from macl.core.errors import UserError
from macl.core.files import partial_name
from macl.modalities.images.sources import ImageTensors
from macl.runs import Run
from macl.training.faults import translate_training_errors
from macl.training.fit import train
from tiny import HERE, TINY, environment, forked_macl, python, recipe, state_of

QUICK = ("epochs=1", "monitor_every=0", "save_every=1")
OUT_OF_SPACE_ERRNOS = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third checkpoint does not fit; with room again the run goes on to the same end."""
    whole = train(recipe(*QUICK), tmp_path / "whole", compute=HERE)
    written: list[int] = []
    flush = os.fsync

    def full(handle: int) -> None:
        if "last.ckpt" in os.readlink(f"/proc/self/fd/{handle}"):
            written.append(handle)
            if len(written) == 3:
                raise OUT_OF_SPACE_ERRNOS
        flush(handle)

    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"could not write.*last\.ckpt: No space left.*resume"):
            train(recipe(*QUICK), cut, compute=HERE)
    assert state_of(Run(cut))["global_step"] == 2
    resumed = train(recipe(*QUICK), cut, resume=True, compute=HERE)
    assert torch.equal(
        resumed.encoder.conv1.weight,  # type: ignore[arg-type]
        whole.encoder.conv1.weight,  # type: ignore[arg-type]
    )


def test_a_full_disk_under_the_metrics_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No space left.*Nothing was trained yet"), \
            translate_training_errors(tmp_path):  # fmt: skip
        raise Exception("No space left on device (os error 28)")  # as Rust has it
    Run(tmp_path).recipe_file.touch()
    with pytest.raises(UserError, match=r"could not write.*No space left.*resume=True"), \
            translate_training_errors(tmp_path):  # fmt: skip
        raise OUT_OF_SPACE_ERRNOS
    with pytest.raises(FileNotFoundError), translate_training_errors(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "no such file")
    with (
        pytest.raises(RuntimeError, match="a mistake of ours"),
        translate_training_errors(tmp_path),
    ):
        raise RuntimeError("a mistake of ours")


@pytest.mark.slow
def test_a_full_file_system(tmp_path: Path) -> None:
    """A real one, of which a checkpoint fills more than half: the second has no room."""
    unshare = shutil.which("unshare")
    room, probe = tmp_path / "room", ["-Urm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if unshare is None or subprocess.run([unshare, *probe], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    size = train(recipe(*QUICK), tmp_path / "whole", compute=HERE).last_checkpoint.stat().st_size
    room.mkdir()
    command = (
        f"mount -t tmpfs -o size={int(1.5 * size)} none {room} && "
        f"'{sys.executable}' {Path(__file__).parents[1] / 'macl_script.py'} train digits "
        f"{' '.join((*TINY, *QUICK))} --out {room}/run; code=$?; "
        f"cp -r {room}/run {tmp_path}/cut; exit $code"
    )
    done = subprocess.run(
        [unshare, "-Urm", "sh", "-c", command], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    cut = tmp_path / "cut"
    assert state_of(Run(cut))["global_step"] == 1
    assert train(recipe(*QUICK), cut, resume=True, compute=HERE).is_finished


def in_worker(act: Any) -> Any:
    """A reader that does `act` where it runs in a reading process."""
    read = ImageTensors.__getitem__

    def getitem(self: ImageTensors, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            act()
        return read(self, index)

    return getitem


def broken_file() -> None:
    raise UserError("image cat.png cannot be read: broken")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "a reading process died.*fewer workers"),
        (lambda: time.sleep(60), "no data came.*hangs.*workers=0"),
        (broken_file, "^image cat.png cannot be read: broken$"),
    ],
    ids=["killed", "hanging", "broken file"],
)
def test_reading_processes_that_fail_are_reported(
    act: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageTensors, "__getitem__", in_worker(act))
    if "hangs" in words:
        monkeypatch.setattr(worker_errors, "READ_TIMEOUT", 1)
    with pytest.raises(UserError, match=words):
        train(recipe(*QUICK, "workers=1"), tmp_path, compute=HERE)


@pytest.mark.slow
def test_processes_agree_on_a_fault_and_notice_a_death(tmp_path: Path) -> None:
    """One of two meets a NaN in the third step, which both skip, and dies in the fifth."""
    done = forked_macl(
        "train", "digits", *TINY, *QUICK, "on_nonfinite=skip",
        "encoder.width=null", "encoder={name: fragile:plain, allow_import: true}",
        "--out", tmp_path, "--devices", "2",
        variables={"FRAGILE_AT": "3,5", "FRAGILE_RANK": "1", "FRAGILE_SIGNAL": "nan,9",
                   "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    shares = [
        json.loads((tmp_path / "faults" / f"step-2-rank-{rank}.json").read_text())["samples"]
        for rank in (0, 1)
    ]
    assert [sum(sample["nonfinite"] for sample in share) for share in shares] == [0, 16]
    assert len({sample["index"] for share in shares for sample in share}) == 32
    assert "another process of this run is gone" in done.stderr
    assert f"macl train {tmp_path} --resume" in done.stderr.replace("\n", "")
    assert state_of(Run(tmp_path))["global_step"] == 4


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    """Killed while it wrote its very first file, a run can still be started in the folder."""
    (tmp_path / partial_name(Path("recipe.yaml"))).write_text("half of it")
    run = train(recipe(*QUICK), tmp_path, compute=HERE)
    litter = run.last_checkpoint.with_name(partial_name(run.last_checkpoint))
    litter.write_bytes(b"half of it")
    train(recipe(*QUICK), tmp_path, resume=True, compute=HERE)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_kills_at_random_moments() -> None:
    """The short form of tests/long/kill.py."""
    pytest.importorskip("torch_geometric")
    done = python("long/kill.py", "--times", "2", "--modalities", "graphs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("graphs: 2 kills survived")


@pytest.mark.parametrize(
    ("step", "words"),
    [("load", "Nothing was trained yet"), ("save_encoder", "checkpoint is kept.*resume=True")],
)
def test_a_full_disk_before_and_after_training_is_an_error(
    step: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OUT_OF_SPACE_ERRNOS

    monkeypatch.setattr(modalities.get("images"), step, full)
    with pytest.raises(UserError, match=f"could not write.*No space left.*{words}"):
        train(recipe(*QUICK), tmp_path / "run", compute=HERE)
