"""Compile the Triton kernels for GPUs that are not there, and report what they use.

A launch is planned on meta tensors by the code that plans real ones, and compiled to a binary for
the named chip. That shows registers, spills, stack and shared memory; it says nothing about speed.
Needs Triton 3.4 (torch 2.8) or newer, which names its tools; the library itself does not.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key

from macl.losses.ops.exclusions import Exclusions, Relation
from macl.losses.ops.maps import LogitMap
from macl.losses.ops.triton.launch import KERNELS, MAPS, Device, Direction, Launch, plan

CHIPS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Compute capability → bytes of shared memory a block may use."""
SMALL_CHIPS = 99 * 1024
"""The same for sm_86, sm_89 and sm_120, which run the tile sizes of sm_80."""
WIDTHS = (64, 128, 256, 512, 768)
PARTS = {"float16": 1, "float16x3": 2}
KINDS: dict[Direction, tuple[str, ...]] = {
    "forward": ("lse", "lse groups stats", "artanh", "softplus groups"),
    # "of columns": the sides swapped; temperature, offset and weight belong to the columns
    "backward": ("lse", "lse groups", "lse of columns", "artanh", "softplus groups of columns"),
}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.int64: "*i64"}


@dataclass(frozen=True)
class Case:
    """One kernel of those that are shipped."""

    kernel: Direction
    kind: str
    arithmetic: str
    dim: int
    sm: int

    def __str__(self) -> str:
        return f"{self.kernel} {self.kind} {self.arithmetic} D={self.dim} sm_{self.sm}"


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
        if self.registers < 16:
            return "the compiler gave up and made an empty kernel"
        if self.stack:
            return f"{self.stack} bytes of registers are spilled"
        return f"{self.shared} bytes of shared memory > {limit}" if self.shared > limit else ""


def cases(sm: int) -> list[Case]:
    """Every shipped configuration for chip `sm`, with the variants that need the most registers."""
    return [
        Case(direction, kind, arithmetic, dim, sm)
        for arithmetic in PARTS
        for dim in WIDTHS
        for direction, kinds in KINDS.items()
        for kind in kinds
    ]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of a shape and a type, without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def planned(case: Case) -> Launch:
    """The launch of both views (three diagonals) that `case` names, on meta tensors."""
    n, name = 4096, case.kind.split()[0]
    groups = meta(n, dtype=torch.int64) if "groups" in case.kind else None
    relation = None if groups is None else Relation(groups, groups)
    exclude = Exclusions((0, n // 2, -n // 2), relation)
    map = LogitMap.known[name]() if name in MAPS else None
    pairs, of_columns = name == "softplus", "of columns" in case.kind
    per = meta(n) if of_columns else meta()
    weights: list[Tensor | None] = [meta(n)] * 4
    if pairs:
        weights = [None, None, meta(n), None] if of_columns else [meta(n), None, None, None]
    rows = meta(PARTS[case.arithmetic], n, case.dim, dtype=torch.float16)
    side = "columns" if of_columns else "all"
    launch = plan(
        case.kernel, name if pairs else "lse", rows, rows, exclude, Device(case.sm),
        scale=meta() if pairs else per, scale_of="all" if pairs else side,
        offset=per if pairs else None, offset_of=side, map=map,
        weights=weights, stats="stats" in case.kind,
    )  # fmt: skip
    launch.arguments["out"] = meta(n)
    if case.kernel == "backward":
        launch.arguments["row_total"] = meta(n) if pairs and not of_columns else None
    return launch


def compile_launch(launch: Launch, sm: int) -> Usage:
    """Compile `launch` for chip `sm`; raises what the compiler raises."""
    target = GPUTarget("cuda", sm, 32)
    compiled = triton.compile(_source(launch), target=target, options=launch.options)
    return _usage(compiled.asm["cubin"], compiled.metadata.shared)


def fingerprint(launch: Launch, sm: int) -> str:
    """Identify what the compiler makes of `launch`: equal fingerprints, equal binaries.

    A hash of the key under which Triton keeps what it compiled: the source of the kernel and of
    what it calls, types and constants, options, chip, and the versions of Triton and of ptxas.
    """
    source, backend = _source(launch), make_backend(GPUTarget("cuda", sm, 32))
    options = backend.parse_options({**launch.options, **source.parse_options()})
    key = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class Record:
    """What each case used when it was compiled last, kept in a file.

    A case whose fingerprint is recorded need not be compiled again.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.entries: dict[str, list[Any]] = json.loads(file.read_text()) if file.exists() else {}

    def usage(self, case: Case) -> Usage | None:
        """The recorded usage of `case`; None if its kernel or the compiler has changed since."""
        found = self.entries.get(str(case))
        if found is None or found[0] != fingerprint(planned(case), case.sm):
            return None
        return Usage(*found[1:])

    def add(self, case: Case, usage: Usage) -> None:
        """Record what `case`, just compiled, uses."""
        self.entries[str(case)] = [
            fingerprint(planned(case), case.sm), usage.registers, usage.stack, usage.shared
        ]  # fmt: skip

    def write(self) -> None:
        """Write the file: a line per shipped case, without those that are not shipped any more."""
        shipped = [str(case) for sm in CHIPS for case in cases(sm)]
        lines = [
            f"{json.dumps(c)}: {json.dumps(self.entries[c])}" for c in shipped if c in self.entries
        ]
        self.file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _source(launch: Launch) -> ASTSource:
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
    return ASTSource(kernel, signature, constants, attributes)


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
