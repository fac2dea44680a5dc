"""Weights as safetensors: no pickle, whole or not at all, mismatches named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.files import atomic_write

REPORTED = 10
"""Mismatches that an error lists before it stops counting."""


def save_weights(module: nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the module's state as safetensors with `metadata` in the header."""
    # Cloned: safetensors refuses tied weights and other memory layouts than the plain one.
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in module.state_dict().items()
    }
    packed = save(state, {"format": "pt", **metadata})
    atomic_write(path, lambda file: file.write(packed))


def read_metadata(path: Path) -> dict[str, str]:
    """The header that `save_weights` wrote."""
    try:
        with safe_open(path.expanduser(), framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def load_weights(module: nn.Module, path: Path, aside: tuple[str, ...] = ()) -> None:
    """Load safetensors into `module`; names in the file that start with `aside` are left out.

    Raises:
        UserError: the file cannot be read, or its weights are not those of this module.
    """
    state, own = read_weights(path), module.state_dict()
    state = {n: value for n, value in state.items() if n in own or not n.startswith(aside)}
    load_state(module, state, path, read_metadata(path))


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        return load_file(path.expanduser())
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def load_state(
    module: nn.Module, state: Mapping[str, Tensor], path: Path, origin: Mapping[str, str]
) -> None:
    """Load `state`, which came from `path` with the header `origin`; `UserError` if it misfits."""
    own = module.state_dict()
    problems = [f"{name} is missing from the file" for name in own if name not in state]
    problems += [f"{name} is not in the encoder" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)} in the file, {tuple(own[name].shape)} in the encoder"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        told = sorted((key, value) for key, value in origin.items() if key != "format")
        made = ", ".join(f"{key}={value}" for key, value in told)
        raise UserError(
            f"weights {path} do not fit the encoder, in {len(problems)} places:\n  "
            + "\n  ".join(problems[:REPORTED])
            + f"\nUse the settings they were made with{made and f': {made}'}."
        )
    module.load_state_dict(state)


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"weights {path} cannot be read as safetensors: {error}. A .pt or .pth file has to be"
        " converted with safetensors.torch.save_file first."
    )
