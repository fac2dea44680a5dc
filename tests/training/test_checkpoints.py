"""Checkpoints: whole or not there, and never code."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import atomic_write
from payload import Payload


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "last.ckpt"
    SafeCheckpointIO().save_checkpoint({"weights": torch.arange(3), "epoch": 4}, path)
    read = SafeCheckpointIO().load_checkpoint(path)
    assert torch.equal(read["weights"], torch.arange(3))
    assert read["epoch"] == 4
    assert os.listdir(path.parent) == ["last.ckpt"]
    SafeCheckpointIO().remove_checkpoint(path)
    assert not path.exists()


def test_code_is_refused_whatever_lightning_asks_for(tmp_path: Path) -> None:
    """Every form of a payload is in tests/test_hostile_pickle.py."""
    path, trace = tmp_path / "evil.ckpt", tmp_path / "trace"
    torch.save({"state_dict": Payload(trace)}, path)
    with pytest.raises(UserError, match="not a checkpoint that can be read safely"):
        SafeCheckpointIO().load_checkpoint(path, weights_only=False)
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 broken"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"last\.ckpt.*damaged"):
        SafeCheckpointIO().load_checkpoint(path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_old_file_survives_a_failed_write(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise error

    expected = UserError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        atomic_write(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_old_checkpoint_survives_a_full_disk(tmp_path: Path) -> None:
    """The limit on file sizes stands for a disk that fills up while torch writes."""
    path, io = tmp_path / "last.ckpt", SafeCheckpointIO()
    io.save_checkpoint({"weights": torch.zeros(10)}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"could not write.*File too large.*untouched"):
            io.save_checkpoint({"weights": torch.ones(1_000_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(io.load_checkpoint(path)["weights"], torch.zeros(10))
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write.*Not a directory.*may write") as result:
        atomic_write(tmp_path / "file" / "run" / "recipe.yaml", lambda file: None)
    assert "space" not in str(result.value)
