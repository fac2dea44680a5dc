"""Checkpoints of sharded weights: parts beside the file, joined to what one process writes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from macl.core.checkpoints import PARTS, PROCESSES, SafeCheckpointIO, write_parts
from macl.core.errors import UserError
from tiny import assert_same

WORLD = 2


@dataclass
class Sharded:
    """What a process has of a tensor."""

    shard: Tensor

    def to_local(self) -> Tensor:
        return self.shard


def sharded(value: Any, rank: int) -> Any:
    """Nested values as process `rank` has them: shards of what has an axis, uneven or empty."""
    if isinstance(value, dict):
        return {key: sharded(each, rank) for key, each in value.items()}
    if isinstance(value, Tensor) and value.ndim:
        return Sharded(([*value.chunk(WORLD), value[:0]])[rank])
    return value


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and an optimizer with two groups, after a step."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    groups: list[dict[str, Any]] = [
        {"params": [p for p in network.parameters() if p.ndim == 1], "weight_decay": 0.0},
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    network(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return network, optimizer


def saved(file: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """The checkpoint of both at `file`, with parts in the folder that is returned."""
    folder = file.with_name(f"{file.stem}-{secrets.token_hex(8)}.parts")
    own = optimizer.state_dict()
    for rank in range(WORLD):
        states = [{**own, "state": sharded(own["state"], rank)}]
        state_dict = sharded(dict(network.state_dict()), rank)
        checkpoint = {"step": 7, "state_dict": state_dict, "optimizer_states": states}
        whole = write_parts(checkpoint, folder, rank)
    SafeCheckpointIO().save_checkpoint({**whole, PARTS: folder.name, PROCESSES: WORLD}, file)
    return folder


def second_file(folder: Path) -> Path:
    return sorted(folder.iterdir())[1]


def test_parts_are_joined_to_what_one_process_writes(tmp_path: Path) -> None:
    network, optimizer = trained()
    saved(tmp_path / "last.ckpt", network, optimizer)
    stored = SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    assert stored.keys() == {"step", "state_dict", "optimizer_states"}
    assert stored["step"] == 7
    assert_same(stored["state_dict"], dict(network.state_dict()))
    assert_same(stored["optimizer_states"], [optimizer.state_dict()])


def test_only_the_newest_parts_stay(tmp_path: Path) -> None:
    first = saved(tmp_path / "last.ckpt", *trained())
    second = saved(tmp_path / "last.ckpt", *trained())
    assert not first.exists()
    assert second.is_dir()
    SafeCheckpointIO().save_checkpoint({"step": 8}, tmp_path / "last.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "last.ckpt", *trained())
    second_file(folder).unlink()
    with pytest.raises(UserError, match=f"its folder .*{folder.name} is missing or lacks files"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"its folder .*{folder.name} is missing"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    SafeCheckpointIO().load_file(tmp_path / "last.ckpt")


def test_a_folder_elsewhere_is_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "run"
    inside.mkdir()
    folder = saved(tmp_path / "last.ckpt", *trained())
    elsewhere = {PARTS: f"../{folder.name}", PROCESSES: WORLD}
    SafeCheckpointIO().save_checkpoint(elsewhere, inside / "last.ckpt")
    with pytest.raises(UserError, match="is missing"):
        SafeCheckpointIO().load_checkpoint(inside / "last.ckpt")


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "last.ckpt", *trained())
    save_file({"['state_dict']['0.weight']": torch.zeros(2, 2)}, second_file(folder))
    with pytest.raises(UserError, match="do not fit together"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
