"""Where an encoder runs, and in which precision: chosen once for a command, and reported."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from macl.core.errors import UserError

HALF = {"bf16": torch.bfloat16, "16": torch.float16}
"""Precisions by autocast; "32" is that of the weights."""


@dataclass(frozen=True)
class Placement:
    """A device and a precision."""

    device: torch.device
    precision: str

    def autocast(self) -> AbstractContextManager[object]:
        """Half precision where it is asked for, as in mixed-precision training."""
        if self.precision not in HALF:
            return nullcontext()
        return torch.autocast(self.device.type, HALF[self.precision])

    def __str__(self) -> str:
        is_gpu = self.device.type == "cuda"
        name = f" ({torch.cuda.get_device_name(self.device)})" if is_gpu else ""
        return f"{self.device}{name}, precision {self.precision}"


def place(device: str = "auto", precision: str = "auto") -> Placement:
    """The device and the precision that the names stand for; `UserError` where there is none.

    Args:
        device: "auto" is the current CUDA or ROCm GPU if there is one, else the CPU; or "cpu",
            "cuda:1", "mps", "xpu".
        precision: "32", "bf16" or "16"; "auto" is bf16 where a GPU computes in it, else 32.
    """
    if precision not in ("auto", "32", *HALF):
        raise UserError(f"precision {precision}: there are auto, 32, bf16 and 16.")
    default = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(default if device == "auto" else device)
        there = torch.get_device_module(chosen)
        is_there = there.is_available() and (chosen.index or 0) < there.device_count()
    except (RuntimeError, AttributeError):
        is_there = False
    if not is_there:
        raise UserError(f"device {device}: there is none here. Use auto, or cpu.")
    if precision == "auto":
        fast = chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if fast else "32"
    return Placement(chosen, precision)


def room(device: torch.device) -> int:
    """Bytes of embeddings that may stay on a device: a quarter of what is free on a GPU."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 1 << 30
