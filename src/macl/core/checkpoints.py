"""Checkpoints that are whole or not there, and that never run code when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from macl.core.errors import UserError
from macl.core.files import atomic_write


class SafeCheckpointIO(CheckpointIO):
    """torch.save, atomically; torch.load with `weights_only=True`."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`, or leave the old file as it was."""

        def write(file: BinaryIO) -> None:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:
                # A failed write (a full disk) reaches us behind an error of torch's archive writer.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        atomic_write(Path(path), write)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read tensors and plain values; anything else in the file is refused."""
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise UserError(
                f"{path} is not a checkpoint that can be read safely ({type(error).__name__}). "
                "It is damaged, or holds more than tensors and plain values."
            ) from error

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the file, if it is there."""
        Path(path).unlink(missing_ok=True)
