"""Compile the Triton kernels for GPUs that are not there, and report what they use.

A launch is planned on meta tensors by the code that plans real ones, and compiled to a binary for
the named chip. That shows registers, spills, stack and shared memory; it says nothing about speed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from macl.losses.kernels.triton_configs import Direction
from macl.losses.kernels.triton_launch import KERNELS, MAPS, Launch, plan

CHIPS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Compute capability → bytes of shared memory a block may use."""
SMALL_CHIPS = 99 * 1024
"""The same for sm_86, sm_89 and sm_120, which run the tile sizes of sm_80."""
WIDTHS = (64, 128, 256, 768)
ARITHMETICS = {
    "bf16": (torch.bfloat16, "tf32x3"),
    "fp16": (torch.float16, "tf32x3"),
    "tf32": (torch.float32, "tf32"),
    "tf32x3": (torch.float32, "tf32x3"),
}
KINDS = (
    "lse",
    "lse groups",
    "lse per row",
    "lse of columns",  # the sides swapped: temperature, offset and weight belong to the columns
    "dystress",
    "artanh",
    "softplus",
    "softplus groups",
    "softplus of columns",
)
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Case:
    """One kernel of those that are shipped."""

    direction: Direction
    kind: str
    arithmetic: str
    dim: int
    sm: int

    def __str__(self) -> str:
        return f"{self.direction} {self.kind} {self.arithmetic} D={self.dim} sm_{self.sm}"


@dataclass(frozen=True)
class Usage:
    """Registers and bytes of stack that a thread uses, bytes of shared memory that a block uses.

    Spilled registers lie on the stack, so a stack of 0 means none.
    """

    registers: int
    stack: int
    shared: int

    def problem(self, sm: int) -> str:
        """What is wrong with it on chip `sm`; empty if nothing."""
        limit = min(CHIPS[sm], SMALL_CHIPS) if sm == 80 else CHIPS[sm]
        if self.stack:
            return f"{self.stack} bytes of registers are spilled"
        return f"{self.shared} bytes of shared memory > {limit}" if self.shared > limit else ""


def cases(sm: int) -> list[Case]:
    """Every shipped configuration for chip `sm`."""
    return [
        Case(direction, kind, arithmetic, dim, sm)
        for arithmetic in ARITHMETICS
        for dim in WIDTHS
        for kind in KINDS
        for direction in DIRECTIONS
        if direction == "backward" or "of columns" not in kind
    ]


def planned(case: Case) -> Launch:
    """The launch of both views (three diagonals) that `case` names, on meta tensors."""
    dtype, precision = ARITHMETICS[case.arithmetic]
    n = 4096

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    groups = meta(n, dtype=torch.int64) if "groups" in case.kind else None
    exclude: Any = SimpleNamespace(
        diagonals=(0, n // 2, -n // 2), row_groups=groups, column_groups=groups, only_groups=False
    )
    name = case.kind.split()[0]
    map = SimpleNamespace(name=name, lowest=0.1, highest=0.2) if name in MAPS else None
    pairs, of_columns = name == "softplus", "of columns" in case.kind
    per = "columns" if of_columns else "rows" if "per row" in case.kind else "all"
    tensors: dict[str, Tensor | None] = {"out": meta(n)}
    if case.direction == "backward":
        tensors = {
            "out": meta(n, case.dim),
            "row_total": meta(n) if pairs and not of_columns else None,
            "row_weight": None if pairs and of_columns else meta(n),
            "row_lse": None if pairs else meta(n),
            "column_weight": None if pairs and not of_columns else meta(n),
            "column_lse": None if pairs else meta(n),
        }
    rows = meta(n, case.dim, dtype=dtype)
    return plan(
        case.direction, "softplus" if pairs else "lse", rows, rows, exclude, precision, case.sm,
        scale=meta() if pairs or per == "all" else meta(n), scale_of="all" if pairs else per,
        offset=(meta() if per == "all" else meta(n)) if pairs else None, offset_of=per,
        map=map, tensors=tensors,
    )  # fmt: skip


def compile_launch(launch: Launch, sm: int) -> Usage:
    """Compile `launch` for chip `sm`; raises what the compiler raises."""
    kernel = KERNELS[launch.kernel]
    constants = dict(launch.constants)
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for index, name in enumerate(kernel.arg_names):
        value = launch.arguments.get(name)
        if name in launch.constants or value is None:
            signature[name] = "constexpr"
            constants.setdefault(name, None)
        elif isinstance(value, Tensor):
            signature[name] = TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]  # as torch allocates
        elif isinstance(value, tuple):
            signature[name] = ("i32",) * len(value)
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=launch.options)
    return _usage(compiled.asm["cubin"], compiled.metadata.shared)


def _usage(cubin: bytes, shared: int) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        shown = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    return Usage(found["REG"], found["STACK"] + found["LOCAL"], shared)
