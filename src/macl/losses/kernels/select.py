"""Which implementation runs where.

    cpu       the tile loop for CPUs
    torch     plain torch, for any device
    triton    CUDA, where the package triton is installed

A loss' argument `kernel`, or else the environment variable MACL_KERNEL, says "torch", "triton" or
"auto". "auto" is `cpu` for CPU tensors; for CUDA tensors `triton` if its self-check passed on this
machine; `torch` otherwise.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from macl.losses.kernels import cpu, torch_tiles
from macl.losses.kernels.interface import LogitMap

VARIABLE = "MACL_KERNEL"
CHOICES = ("auto", "torch", "triton")
TRITON_MAPS = ("dystress", "artanh")
TRITON_FUNCTIONS = ("softplus", "identity")
"""What the Triton kernels know; other maps, functions and float64 run in plain torch."""


def checked(kernel: str | None) -> str | None:
    """`kernel` itself.

    Raises:
        ValueError: it is not one of the choices.
    """
    if kernel is not None and kernel not in CHOICES:
        raise ValueError(
            f"kernel (or the environment variable {VARIABLE}) is one of {', '.join(CHOICES)}; "
            f"got {kernel!r}."
        )
    return kernel


def wanted(kernel: str | None) -> str:
    """The choice that was made: `kernel`, or else MACL_KERNEL, or else "auto"."""
    chosen = checked(kernel or os.environ.get(VARIABLE) or "auto")
    assert chosen is not None
    return chosen


def selected(device: torch.device | str, kernel: str | None = None) -> str:
    """The implementation for tensors on `device`: "cpu", "torch" or "triton".

    Args:
        device: where the embeddings are.
        kernel: as the argument of a loss; None reads MACL_KERNEL.
    """
    kind = torch.device(device).type
    choice = wanted(kernel)
    if choice == "auto":
        if kind == "cpu":
            return "cpu"
        return "triton" if kind == "cuda" and triton_works() else "torch"
    if choice == "triton" and kind != "meta":
        if kind != "cuda" and not os.environ.get("TRITON_INTERPRET"):
            raise ValueError(
                f'kernel="triton" runs on CUDA tensors, got {kind}. Use kernel="auto", or set '
                "TRITON_INTERPRET=1 to interpret the kernels on the CPU."
            )
        return "triton"
    return "torch"


def backend(
    rows: Tensor, kernel: str | None, map: LogitMap | None = None, function: str = "softplus"
) -> ModuleType:
    """The module of the implementation that is `selected` for `rows` and can do what is asked."""
    name = selected(rows.device, kernel)
    if name == "cpu":
        return cpu
    known = (
        rows.dtype != torch.float64
        and (map is None or map.name in TRITON_MAPS)
        and function in TRITON_FUNCTIONS
    )
    return _triton() if name == "triton" and known else torch_tiles


@cache
def triton_works() -> bool:
    """Whether Triton is installed and its kernels passed their self-check on this machine."""
    try:
        return bool(_triton().self_check())
    except ImportError:
        return False


def _triton() -> ModuleType:
    return importlib.import_module("macl.losses.kernels.triton")
