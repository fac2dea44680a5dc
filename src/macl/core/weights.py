"""Weights as safetensors: no pickle, written atomically, mismatches listed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.files import atomic_write

REPORTED = 10
"""Mismatches that an error lists."""


def save_weights(module: nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the module's state as safetensors with `metadata` in the header."""
    # Cloned: safetensors refuses tied weights and memory layouts that are not contiguous.
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in module.state_dict().items()
    }
    packed = save(state, {"format": "pt", **metadata})
    # The library writes metadata in any order.
    end = 8 + int.from_bytes(packed[:8], "little")
    entries = json.loads(packed[8:end])
    entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of 8
    header, numbers = len(text).to_bytes(8, "little") + text, memoryview(packed)[end:]
    atomic_write(path, lambda file: (file.write(header), file.write(numbers)))


def read_metadata(path: Path) -> dict[str, str]:
    """The header that `save_weights` wrote."""
    with _readable(path) as file, safe_open(file, framework="pt") as opened:
        return opened.metadata() or {}


def load_weights(module: nn.Module, path: Path) -> None:
    """Load safetensors into `module`; `UserError` if they do not fit."""
    load_state(module, read_weights(path), path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with _readable(path) as file:
        return load_file(file)


def load_state(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load `state`, read from `path`; `UserError` if it does not fit."""
    own = module.state_dict()
    problems = [f"{name} is missing from the file" for name in own if name not in state]
    problems += [f"{name} is not in the encoder" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)} in the file, {tuple(own[name].shape)} in the encoder"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        origin = read_metadata(path) if path.suffix == ".safetensors" else {}
        settings = sorted((key, value) for key, value in origin.items() if key != "format")
        made = ", ".join(f"{key}={value}" for key, value in settings)
        places = "\n  ".join(problems[:REPORTED])
        raise UserError(
            f"weights {path} do not fit the encoder, in {len(problems)} places:\n  {places}\n"
            f"Use the settings they were made with{made and f': {made}'}."
        )
    module.load_state_dict(state)


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    try:
        yield path.expanduser()
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"weights {path} cannot be read as safetensors: {error}. A .pt or .pth file has to be"
            " converted with safetensors.torch.save_file first."
        ) from error
