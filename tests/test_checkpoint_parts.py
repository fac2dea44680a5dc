"""Checkpoints of sharded weights: parts beside the file, joined to what one process writes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from macl.core.checkpoint_parts import PARTS, new_parts, part_names
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from tiny import assert_same


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
    own = get_optimizer_state_dict(network, optimizer)
    folder = file.with_name(new_parts(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            part_names(network.state_dict(), [own]),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
            no_dist=True,
        )
    groups = [{"param_groups": own["param_groups"]}]
    checkpoint = {"step": 7, "state_dict": {}, "optimizer_states": groups, PARTS: folder.name}
    SafeCheckpointIO().save_checkpoint(checkpoint, file)
    return folder


def test_parts_are_joined_to_what_one_process_writes(tmp_path: Path) -> None:
    network, optimizer = trained()
    saved(tmp_path / "last.ckpt", network, optimizer)
    stored = SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    assert stored["step"] == 7
    assert_same(dict(network.state_dict()), dict(sorted_like(stored["state_dict"], network)))
    fresh, other = trained()
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    fresh.load_state_dict(stored["state_dict"])
    other.load_state_dict(stored["optimizer_states"][0])
    for one, two in zip(fresh.parameters(), network.parameters(), strict=True):
        assert torch.equal(one, two)
        assert_same(dict(other.state[one]), dict(optimizer.state[two]))
    assert [g["weight_decay"] for g in other.param_groups] == [0.0, 0.1]


def sorted_like(state: dict[str, Tensor], network: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, state[name]) for name in network.state_dict()]


def test_only_the_newest_parts_stay(tmp_path: Path) -> None:
    first = saved(tmp_path / "last.ckpt", *trained())
    second = saved(tmp_path / "last.ckpt", *trained())
    assert not first.exists()
    assert second.is_dir()
    SafeCheckpointIO().save_checkpoint({"step": 8}, tmp_path / "last.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "last.ckpt", *trained())
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"its folder .*{folder.name} is missing"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    SafeCheckpointIO().load_file(tmp_path / "last.ckpt")


def test_a_folder_elsewhere_is_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "run"
    inside.mkdir()
    folder = saved(tmp_path / "last.ckpt", *trained())
    SafeCheckpointIO().save_checkpoint({PARTS: f"../{folder.name}"}, inside / "last.ckpt")
    with pytest.raises(UserError, match="is missing"):
        SafeCheckpointIO().load_checkpoint(inside / "last.ckpt")


def test_shapes_that_parts_only_claim_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "last.ckpt", *trained())
    (file,) = folder.iterdir()
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        about = opened.metadata()
    (key,) = (k for k, v in about.items() if "saved_offsets" in v)
    offsets = json.loads(about[key])
    offsets["model/0.weight"]["saved_offsets"] = [10**12, 0]
    save_file(tensors, file, {**about, key: json.dumps(offsets)})
    with pytest.raises(UserError, match="decompression bomb"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
