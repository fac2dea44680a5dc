"""Tile sizes of the Triton kernels, by arithmetic, width of a row and generation of the GPU.

Each was compiled for sm_80, sm_90 and sm_100 without spilled registers and within the shared memory
of the chip (`triton_compile`, docs/results/gpu.md). None was timed on a GPU.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Arithmetic = Literal["half", "float16", "tf32", "tf32x3"]
"""Of the products: "half" and "float16" are bfloat16 and float16 inputs; the others are float32."""
Direction = Literal["forward", "backward"]


class Config(NamedTuple):
    """BM rows by BN columns, BD components at a time, DV of them accumulated by a backward program.

    `reload`: the backward loads the columns a second time for W·columns, in the layout of that
    product, instead of keeping them in registers.
    """

    bm: int
    bn: int
    bd: int
    dv: int = 0
    warps: int = 8
    stages: int = 2
    reload: bool = False


def arithmetic(dtype: torch.dtype, precision: str) -> Arithmetic:
    """The arithmetic for inputs of `dtype`; raises for what these kernels do not do."""
    if dtype == torch.bfloat16:
        return "half"
    if dtype == torch.float16:
        return "float16"
    if dtype != torch.float32:
        raise TypeError(
            f"the Triton kernels take float32, bfloat16 and float16, not {dtype}; use the "
            "plain-torch backend for it (MACL_KERNEL=torch)."
        )
    if precision == "ieee":
        raise ValueError(
            'precision="ieee" (exact float32 products) is not available in the Triton kernels; use '
            'the plain-torch backend for it (MACL_KERNEL=torch), or precision="tf32x3", which '
            "differs from it by rounding only."
        )
    if precision == "tf32" or precision == "tf32x3":
        return precision  # type: ignore[return-value]
    raise ValueError(f'precision is "tf32x3", "tf32" or "ieee", not {precision!r}.')


def config(direction: Direction, kind: Arithmetic, dim: int, sm: int, extra: bool) -> Config:
    """The tile sizes for rows of `dim` components on a GPU of compute capability `sm` (80, 90 …).

    `extra`: groups, a similarity map or a pair sum, which need registers of their own.
    """
    width = next((w for w in (64, 128, 256) if dim <= w), 512)
    return _forward(kind, width) if direction == "forward" else _backward(kind, width, sm, extra)


def _forward(kind: Arithmetic, width: int) -> Config:
    if kind == "tf32x3":
        return Config(128, 64, 32)
    if kind == "tf32":
        return Config(128, 64, width) if width <= 128 else Config(128, 64, 32, stages=3)
    return Config(128, 64, width) if width <= 256 else Config(128, 64, 64, stages=3)


def _backward(kind: Arithmetic, width: int, sm: int, extra: bool) -> Config:
    if kind == "tf32x3":
        return Config(64, 16, 32, 64) if width == 64 else Config(64, 32, 32, 128)
    if kind == "tf32":
        if width == 64:
            return Config(64, 32, 64, 64, reload=True)
        if width == 128:
            return Config(64, 64 if blackwell(sm) else 32, 128, 128, reload=True)
        return Config(64, 32 if extra else 64, 32, 256)
    if width == 64:
        return Config(128, 32, 64, 64)
    if width == 128 and (sm == 90 or blackwell(sm)):
        return Config(128, 32 if extra and blackwell(sm) else 64, 128, 128)
    return Config(64, 64, 128, 128) if width == 128 else Config(64, 64, 64, 256)


def rowwise(dim: int) -> Config:
    """The same for the row kernels: rows and their positives; 0: numbers without components."""
    if not dim:
        return Config(1024, 1, 1, warps=4)
    width = next((w for w in (16, 32, 64) if dim <= w), 128)
    return Config(8, 1, width, warps=4)


def blackwell(sm: int) -> bool:
    """Whether it is a data-centre Blackwell; others (sm_120) have the shared memory of sm_86."""
    return sm in (100, 103)


def register_limit(sm: int) -> int | None:
    """Registers per thread that the compiler may use; None leaves it to the compiler.

    For sm_100 it aims at several blocks at a time and spills a few bytes to get there.
    """
    return 255 if blackwell(sm) else None
