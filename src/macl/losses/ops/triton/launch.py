"""Tile sizes, launches, and the four functions of the operator on plain tensors.

No autograd, and nothing is read back by the host. Results are float32. Rows and columns have unit
length (the arithmetic relies on numbers of at most about 1): r_i·c_j = s_ij.

float32 rows are split into two float16 parts each and multiplied by three products, which is as
accurate as float32 at a third of the float16 rate. Where a side is float16 or bfloat16, both are
rounded to float16 (11 bits, as tf32) and multiplied once. Sums are float32 always.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import torch
import triton
from torch import Tensor

from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.maps import LogitMap
from macl.losses.ops.triton.kernels import backward, forward

Side = Literal["rows", "columns"]
Direction = Literal["forward", "backward"]

KERNELS = {"forward": forward, "backward": backward}
INTERPRETED = not isinstance(forward, triton.runtime.JITFunction)
MAPS = ("dystress", "artanh")
FUNCTIONS = ("softplus", "identity", "nll_over_scale", "one")
PROCESSORS = 108
"""Multiprocessors that are assumed where there is no GPU: those of an A100."""
TILES_PER_SPLIT = 2
"""A program that streams fewer tiles of columns spends its time on starting."""
PARTIAL_BYTES = 2**26
"""The most that partial sums of a gradient may take."""


def supported(map: LogitMap | None = None, function: str = "softplus") -> bool:
    """Whether these kernels have the map and the function of a pair sum."""
    scaled = map is not None and map.name == "artanh" and map.parameters() != [1.0]
    return not scaled and (map is None or map.name in MAPS) and function in FUNCTIONS


def lse(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    map: LogitMap | None = None,
    *,
    temperature_of: Side = "rows",
    stats: bool = False,
) -> Tensor:
    """(n,) logsumexp_j l_ij of l = s/τ; −∞ for a row without entries, NaN for one with NaN.

    `temperature`: 0-d, or one per row (per column with `temperature_of`). With `map` the logit is a
    function of s alone and `temperature` is not read: "dystress": s/τ(s), τ(s) = τ_min + (τ_max −
    τ_min)·sin²(πs/2); "artanh": log1p(s) − log1p(−s), |s| at most the largest float32 below 1.
    `stats`: (3, n), with the means of l and of s² under P_ij = e^(l_ij − lse_i); 0 without entries.
    """
    left, right = _prepared(rows, columns)
    tau = _vector(temperature, rows)
    launch = plan(
        "forward", "lse", left, right, exclude, device_of(rows), scale=tau,
        scale_of=_side(tau, temperature_of), map=map, stats=stats,
    )  # fmt: skip
    out = rows.new_empty(launch.splits, 3 if stats else 1, len(rows), dtype=torch.float32)
    launch.run(out=out)
    if launch.splits == 1:
        return out[0] if stats else out[0, 0]
    whole = out[:, 0].logsumexp(0)
    if not stats:
        return whole
    # Means of the splits, weighted by their part of the sum; −∞ − (−∞) has weight 0.
    share = (out[:, 0] - whole).exp().masked_fill(whole == -torch.inf, 0)
    return torch.cat([whole[None], (out[:, 1:] * share[:, None]).sum(0)])


def lse_grad(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    row_weight: Tensor | None,
    row_lse: Tensor | None,
    column_weight: Tensor | None = None,
    column_lse: Tensor | None = None,
    map: LogitMap | None = None,
    *,
    temperature_of: Side = "rows",
) -> Tensor:
    """(n, D) gradient of the rows from the weights of the logsumexps of rows and of columns.

    out_i = Σ_j [row_weight_i·e^(l_ij − row_lse_i) + column_weight_j·e^(l_ij − column_lse_j)]
                ·(dl/ds)_ij·columns_j
    Weights of either side may be absent. Each lse is of all of its logits or more, so that e^(l −
    lse) ≤ 1. The gradient of the columns is this function with sides, weights and `temperature_of`
    swapped and `exclude.transposed()`. dτ needs no kernel: dL/dτ_i = −(rows_i·out_i)/τ_i. The slope
    of "dystress" is 1/τ(s), that of "artanh" 2/(1 − s²).
    """
    left, right = _prepared(rows, columns)
    tau = _vector(temperature, rows)
    launch = plan(
        "backward", "lse", left, right, exclude, device_of(rows), scale=tau,
        scale_of=_side(tau, temperature_of), map=map,
        weights=[_vector(x, rows) for x in (row_weight, row_lse, column_weight, column_lse)],
    )  # fmt: skip
    out = rows.new_empty(launch.splits, *rows.shape, dtype=torch.float32)
    launch.run(out=out, row_total=None)
    return out.sum(0) if launch.splits > 1 else out[0]


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    function: str = "softplus",
) -> Tensor:
    """(n,) Σ_j f(offset_i + scale·s_ij); `scale` 0-d, `offset` 0-d or one per row."""
    left, right = _prepared(rows, columns)
    launch = plan(
        "forward", function, left, right, exclude, device_of(rows), scale=_vector(scale, rows),
        offset=_vector(offset, rows), offset_of=_side(offset, "rows"),
    )  # fmt: skip
    out = rows.new_empty(launch.splits, len(rows), dtype=torch.float32)
    launch.run(out=out)
    return out.sum(0) if launch.splits > 1 else out[0]


def pair_sum_grad(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    weight: Tensor,
    function: str = "softplus",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of Σ_i weight_i·pair_sum_i: rows (n, D), columns (m, D), scale, offset (as given).

    With G_ij = weight_i·f'(offset_i + scale·s_ij): scale·G·columns, scale·Gᵀ·rows, Σ_ij G_ij·s_ij,
    Σ_j G_ij.
    """
    left, right = _prepared(rows, columns)
    weight, scale, offset = (x.to(rows.device, torch.float32) for x in (weight, scale, offset))

    def pulled(
        own: Tensor, other: Tensor, exclude: Exclusions, side: Side
    ) -> tuple[Tensor, Tensor]:
        """(n, D) Σ_j G_ij·other_j and (n,) Σ_j G_ij; weight and offset belong to `side`."""
        mine, (n, dim) = side == "rows", own.shape[1:]
        launch = plan(
            "backward", function, own, other, exclude, device_of(own), scale=scale,
            offset=offset.contiguous(), offset_of=_side(offset, side),
            weights=[weight.contiguous() if x else None for x in (mine, False, not mine, False)],
        )  # fmt: skip
        out, total = scale.new_empty(launch.splits, n, dim), scale.new_empty(launch.splits, n)
        launch.run(out=out, row_total=total if mine else None)
        return out.sum(0), total.sum(0)

    by_row, total = pulled(left, right, exclude, "rows")
    by_column, _ = pulled(right, left, exclude.transposed(), "columns")
    d_scale = (by_row * rows).sum()
    return scale * by_row, scale * by_column, d_scale, total if offset.ndim else total.sum()


class Config(NamedTuple):
    """BM rows by BN columns, BD components at a time.

    A backward program sums `chunks` times DV components; 0 chunks: the BD that it has loaded.
    `resident`: programs that fit a multiprocessor at a time, by registers.
    """

    bm: int
    bn: int
    bd: int
    dv: int = 0
    chunks: int = 0
    warps: int = 8
    stages: int = 2
    resident: int = 1


class Device(NamedTuple):
    """Compute capability (80, 90 …) and number of multiprocessors."""

    sm: int = 80
    processors: int = PROCESSORS

    @property
    def blackwell(self) -> bool:
        """Whether it is a data-center Blackwell; others (sm_120) have the memory of sm_86."""
        return self.sm in (100, 103)


def device_of(x: Tensor) -> Device:
    """Of the GPU that holds `x`; an A100 where there is none."""
    if not x.is_cuda:
        return Device()
    properties = torch.cuda.get_device_properties(x.device)
    return Device(10 * properties.major + properties.minor, properties.multi_processor_count)


def config(direction: Direction, parts: int, dim: int, device: Device, extra: bool) -> Config:
    """The tile sizes for rows of `dim` components.

    `extra`: groups, a map, statistics, τ per column or a pair sum, which need more registers.
    Each was compiled for sm_80, sm_90 and sm_100 without spilled registers and within the shared
    memory of the chip (docs/results/gpu.md). None was timed on a GPU.
    """
    width = next((w for w in (64, 128, 256) if dim <= w), 512)
    large = device.sm == 90 or device.blackwell
    if direction == "forward":
        if parts == 1:
            few = width <= 256
            resident = 2 if width <= 128 and not extra else 1
            return Config(128, 64, width if few else 64, stages=3 - few, resident=resident)
        return Config(128, 64, 64, stages=2 if width == 64 else 3)
    if width <= 128:
        if parts == 1:
            return Config(128 if large and not extra else 64, 64, width, width)
        return Config(64, 32, width, width)
    # Each piece computes the similarities again: as few pieces as registers allow, equal in size.
    pieces = -(-dim // 384)
    chunks = -(-dim // (128 * pieces))
    if parts == 1:
        return Config(64, 64 if large or not extra else 32, 64, 128, chunks)
    if large or chunks < 3:
        return Config(64, 32, 32, 128, chunks)
    return Config(64, 16, 64, 128, 3) if extra else Config(64, 32, 16, 128, 3)


def splits_of(programs: int, device: Device, resident: int, most: int) -> int:
    """The smallest number of column splits within a tenth of the best use of the multiprocessors.

    `programs` own rows and take a share 1/s of the columns each: time ∝ ⌈programs·s/slots⌉/s.
    """
    slots = device.processors * resident
    times = [-(-programs * s // slots) / s for s in range(1, max(most, 1) + 1)]
    return next(s for s, time in enumerate(times, 1) if time <= 1.1 * min(times))


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel, its grid, arguments, compile-time constants and tile sizes.

    The functions above run these descriptions; benchmarks/gpu_compile.py compiles them for chips
    that are not there. So what is compiled and checked is what runs.
    """

    kernel: Direction
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    config: Config
    device: Device

    @property
    def splits(self) -> int:
        """Shares of the columns, each with results of its own."""
        return self.grid[1]

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options; fusing products and sums is not left to Triton's default."""
        options = {
            "num_warps": self.config.warps,
            "num_stages": self.config.stages,
            "enable_fp_fusion": True,
        }
        # For these the compiler aims at several blocks at a time and spills to get there.
        return options | ({"maxnreg": 255} if self.device.blackwell else {})

    def run(self, **outputs: Tensor | None) -> None:
        """Launch it on the device of its tensors, if there is anything to compute."""
        if not self.grid[0]:
            return
        with torch.cuda.device_of(self.arguments["rows"]):
            kernel = KERNELS[self.kernel]
            kernel[self.grid](**self.arguments, **outputs, **self.constants, **self.options)


def plan(
    direction: Direction,
    reduction: str,
    rows: Tensor,
    columns: Tensor,
    exclude: Exclusions,
    device: Device,
    *,
    scale: Tensor | None,
    scale_of: str = "all",
    offset: Tensor | None = None,
    offset_of: str = "all",
    map: LogitMap | None = None,
    weights: list[Tensor | None] | None = None,
    stats: bool = False,
) -> Launch:
    """The launch for rows (parts, n, D) against columns (parts, m, D), as `_prepared` makes them.

    `scale`, `offset`: a number, or one per entry of the side that `…_of` names.
    `weights`: weight and lse of the rows and of the columns, for a backward.
    """
    parts, n, dim = rows.shape
    m = columns.shape[1]
    known = supported(map, "softplus" if reduction == "lse" else reduction)
    if not (known and exclude.is_simple):
        raise ValueError(
            f"the Triton kernels have the similarity maps {', '.join(MAPS)} and the functions "
            f"{', '.join(FUNCTIONS)}, with diagonals and groups excluded; use the tiled "
            "implementation for others."
        )
    relation, plain = exclude.relation, reduction == "lse" and map is None and not stats
    extra = not plain or relation is not None or scale_of == "columns"
    tile = config(direction, parts, dim, device, extra)
    low, high = (*(map.parameters() if map is not None else ()), 1.0, 1.0)[:2]
    groups = [x.contiguous() for x in relation] if relation else [None, None]
    arguments = {
        "rows": rows, "columns": columns, "scale": scale, "offset": offset,
        "row_groups": groups[0], "column_groups": groups[1],
        "diagonals": tuple(exclude.diagonals) or (0,),  # Triton has no empty tuple
        "low": float(low), "high": float(high), "n": n, "m": m,
    }  # fmt: skip
    constants = {
        "D": dim, "PARTS": parts, "REDUCTION": reduction, "MAP": None if map is None else map.name,
        "SCALE_OF": scale_of, "OFFSET_OF": offset_of, "ONLY_GROUPS": exclude.only_classes,
        "DIAGONALS": len(exclude.diagonals), "UPCAST": INTERPRETED,
        "BM": tile.bm, "BN": tile.bn, "BD": tile.bd,
    }  # fmt: skip
    tiles, row_blocks, pieces = triton.cdiv(m, tile.bn), triton.cdiv(n, tile.bm), 1
    most = tiles // TILES_PER_SPLIT
    if direction == "forward":
        constants["STATS"] = stats
    else:
        names = ("row_weight", "row_lse", "column_weight", "column_lse")
        arguments |= dict(zip(names, weights or [None] * 4, strict=True))
        constants |= {"DV": tile.dv, "CHUNKS": tile.chunks}
        pieces = triton.cdiv(dim, tile.dv * tile.chunks) if tile.chunks else 1
        most = min(most, PARTIAL_BYTES // max(4 * n * dim, 1))
    splits = splits_of(row_blocks * pieces, device, tile.resident, most)
    span = triton.cdiv(max(tiles, 1), splits)
    arguments["span"] = span * tile.bn
    grid = (row_blocks if dim else 0, triton.cdiv(max(tiles, 1), span), pieces)
    return Launch(direction, grid, arguments, constants, tile, device)


def _prepared(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides as the kernels read them: (parts, n, D) in float16."""
    if rows.ndim != 2 or columns.ndim != 2 or rows.shape[1] != columns.shape[1]:
        raise ValueError(
            "rows (n, D) and columns (m, D) need the same D, got "
            f"{tuple(rows.shape)} and {tuple(columns.shape)}."
        )
    for x in (rows, columns):
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"the Triton kernels take float32, float16 and bfloat16, not {x.dtype}; use the "
                "tiled implementation for it."
            )
    both = rows.dtype == columns.dtype == torch.float32
    left = _split(rows) if both else rows.half().contiguous()[None]
    if columns is rows:
        return left, left
    # bfloat16 fits float16: |x| ≤ 1, and 2⁻²⁵ off at most.
    return left, _split(columns) if both else columns.half().contiguous()[None]


def _split(x: Tensor) -> Tensor:
    """(2, n, D): x rounded to float16, and what that leaves."""
    parts = torch.empty((2, *x.shape), dtype=torch.float16, device=x.device)
    parts[0].copy_(x)
    torch.sub(x, parts[0], out=parts[1])
    return parts


def _vector(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """As the kernels read it: where the rows are, float32, contiguous; mostly it is already."""
    return None if x is None else x.to(rows.device, torch.float32).contiguous()


def _side(x: Tensor | None, side: str) -> str:
    return "all" if x is None or x.ndim == 0 else side
