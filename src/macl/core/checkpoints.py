"""Checkpoints that are written atomically and read without running code.

That of sharded weights has None in place of the tensors that are sharded. Beside it is a folder of
parts: each process writes its shards, slices along the first axis, as safetensors under the names
by which the tensors are reached.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from safetensors.torch import save
from torch import Tensor
from torch.utils._pytree import keystr, tree_map_with_path

from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.torch_files import load_torch
from macl.core.weights import read_weights

PARTS, PROCESSES = "parts", "processes"
"""The keys of a checkpoint that name its folder of parts and say how many files are in it."""


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plug-in: atomic `torch.save`, safe `load_torch`."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`; on failure the old file is unchanged."""

        def write(file: BinaryIO) -> None:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:
                # torch's archive writer hides a failed write (a full disk) behind its own error.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        atomic_write(Path(path), write)
        for folder in Path(path).parent.glob(f"{Path(path).stem}-*.parts"):
            if folder.name != checkpoint.get(PARTS):
                shutil.rmtree(folder)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read tensors and plain values, those in parts too; anything else is refused."""
        return joined(self.load_file(path), Path(path))

    def load_file(self, path: Any) -> dict[str, Any]:
        """The same without what is in parts."""
        try:
            return dict(load_torch(Path(path)))
        except (FileNotFoundError, UserError):
            raise
        except Exception as error:
            raise UserError(
                f"{path} is not a checkpoint that can be read safely ({type(error).__name__}). It "
                "is damaged, or has more than tensors and plain values: restore or remove it."
            ) from error


def write_parts(checkpoint: Mapping[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    """Write the shards of process `rank` into `folder`; the checkpoint with None for them."""
    shards: dict[str, Tensor] = {}

    def without_shards(place: Any, value: Any) -> Any:
        if not hasattr(value, "to_local"):
            return value
        # Cloned: safetensors refuses tied weights and memory layouts that are not contiguous.
        local = value.to_local().detach().cpu()
        shards[keystr(place)] = local.clone(memory_format=torch.contiguous_format)
        return None

    whole: dict[str, Any] = tree_map_with_path(without_shards, checkpoint)
    atomic_write(folder / f"{rank:05}.safetensors", lambda file: file.write(save(shards)))
    return whole


def joined(checkpoint: dict[str, Any], path: Path) -> dict[str, Any]:
    """The checkpoint of the file `path` as one process would have written it."""
    if PARTS not in checkpoint:
        return checkpoint
    folder = path.parent / Path(str(checkpoint.pop(PARTS))).name
    files = sorted(folder.glob("*.safetensors"))
    if not files or len(files) != checkpoint.pop(PROCESSES, None):
        raise UserError(f"{path} is incomplete: its folder {folder} is missing or lacks files.")
    parts = [read_weights(file) for file in files]

    def with_shards(place: Any, value: Any) -> Any:
        name = keystr(place)
        return torch.cat([part[name] for part in parts]) if name in parts[0] else value

    try:
        return tree_map_with_path(with_shards, checkpoint)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"the files in {folder} do not fit together: {error}") from error
