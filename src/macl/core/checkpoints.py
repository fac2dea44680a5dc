"""Checkpoints that are written atomically and read without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from macl.core.checkpoint_parts import PARTS, joined, remove_other_parts
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.torch_files import load_torch


class SafeCheckpointIO(CheckpointIO):
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
        remove_other_parts(Path(path), checkpoint.get(PARTS))

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

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the file if it exists."""
        Path(path).unlink(missing_ok=True)
