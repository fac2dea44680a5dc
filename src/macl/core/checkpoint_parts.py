"""Checkpoints of sharded weights: tensors in safetensors parts, one or more of each process.

The checkpoint itself has the name of their folder, an empty `state_dict`, and in `optimizer_states`
the groups with their parameters by name. A tensor of the model is called `model/NAME` in the parts,
one of an optimizer's state `optimizer-0/SLOT/NAME`.
"""

from __future__ import annotations

import secrets
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.core.limits import check_unpacked

PARTS = "parts"
"""The key of a checkpoint that names its folder of parts."""


def new_parts(path: Path) -> str:
    """The name of a new folder of parts for the checkpoint at `path`."""
    return f"{path.stem}-{secrets.token_hex(8)}.parts"


def remove_other_parts(path: Path, kept: str | None) -> None:
    """Remove the folders of parts beside `path` that its checkpoint does not name."""
    for folder in path.parent.glob(f"{path.stem}-*.parts"):
        if folder.name != kept:
            shutil.rmtree(folder)


def parts_folder(checkpoint: Mapping[str, Any], path: Path) -> Path | None:
    """The folder with the tensors of the checkpoint at `path`; None where it has them itself."""
    if PARTS not in checkpoint:
        return None
    folder = path.parent / Path(str(checkpoint[PARTS])).name
    if not folder.is_dir():
        raise UserError(f"{path} is incomplete: its folder {folder} is missing. Restore it.")
    return folder


def part_names(
    model: Mapping[str, Any], optimizers: Sequence[Mapping[str, Any]]
) -> dict[str, Tensor]:
    """The tensors of a model and of its optimizers' states by their names in the parts."""
    tensors = {f"model/{name}": value for name, value in model.items()}
    for number, optimizer in enumerate(optimizers):
        for name, state in optimizer["state"].items():
            for slot, value in state.items():
                tensors[f"optimizer-{number}/{slot}/{name}"] = value
    return tensors


def joined(checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The checkpoint as one process would have written it, with the tensors in `folder`."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    stored, claimed = sum(file.stat().st_size for file in folder.iterdir()), 0
    tensors: dict[str, Any] = {}
    described: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    for name, about in described.items():
        claimed += about.size.numel() * about.properties.dtype.itemsize
        # A shape is made of offsets in the files, which may claim anything.
        check_unpacked(claimed, stored, folder, "its tensors would unpack")
        tensors[name] = torch.empty(about.size, dtype=about.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=True)

    model, states = {}, [dict[str, Any]() for _ in checkpoint["optimizer_states"]]
    for key, value in tensors.items():
        kind, *slot, name = key.split("/")
        if kind == "model":
            model[name] = value
        else:
            own = states[int(kind.removeprefix("optimizer-"))].setdefault(name, {})
            own[slot[0]] = value
    optimizers = [
        _numbered(state, optimizer["param_groups"])
        for state, optimizer in zip(states, checkpoint["optimizer_states"], strict=True)
    ]
    return {**checkpoint, "state_dict": model, "optimizer_states": optimizers}


def _numbered(state: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An optimizer's state with parameters by number, in the order of its groups, as in torch."""
    numbers = {name: n for n, name in enumerate(x for group in groups for x in group["params"])}
    return {
        "state": {numbers[name]: values for name, values in state.items()},
        "param_groups": [{**g, "params": [numbers[name] for name in g["params"]]} for g in groups],
    }
