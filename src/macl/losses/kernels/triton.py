"""The Triton backend: logsumexp and pair sums of r·c over tiles that are never stored.

Pure functions without autograd, on CUDA tensors (or any with TRITON_INTERPRET=1). Each returns
float32, whatever the inputs: the caller casts. Nothing is read back by the host.

Launches: one for `lse`, one for `lse_grad`. A loss on both views (rows = columns, one matrix of 2N
rows) takes these two for its N×N part, forward and backward; a loss against other columns takes
three, as the gradient of the columns is a launch of its own; `pair_sum` with `pair_sum_grad` takes
three, besides a few elementwise operations and reductions. precision="tf32" adds one per input.

`exclude` states which pairs do not count: `diagonals` (pair (i, i + d) for each d), `row_groups`
and `column_groups` ((n,), (m,) integers; equal ones are excluded, or with `only_groups` they alone
count).

`precision` of float32 inputs: "tf32x3" (three tf32 products each, as accurate as float32) or "tf32"
(inputs rounded to tf32 beforehand, as the hardware truncates; unfit for τ near 0.005). bfloat16 and
float16 are multiplied as they are and summed in float32.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from macl.losses.kernels import triton_configs as configs
from macl.losses.kernels.triton_forward import round_to_tf32
from macl.losses.kernels.triton_launch import Excluded, Map, capability, plan

__all__ = ["lse", "lse_grad", "pair_sum", "pair_sum_grad", "self_check"]

Side = Literal["rows", "columns"]
Function = Literal["softplus", "identity"]
BLOCK = 1024


def lse(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Excluded,
    map: Map | None = None,
    *,
    temperature_of: Side = "rows",
    precision: str = "tf32x3",
    out: Tensor | None = None,
) -> Tensor:
    """(n,) logsumexp_j l_ij of l = s/τ, s = rows·columns; −∞ for a row without entries.

    `temperature`: 0-d, or one per row (per column with `temperature_of`). With `map` the logit is a
    function of s alone and `temperature` is not read: "dystress": s/τ(s), τ(s) = lowest + (highest
    − lowest)·sin²(πs/2); "artanh": log1p(s) − log1p(−s), |s| at most the largest float32 below 1.
    `out`: where to write it, contiguous float32.
    """
    rows, columns = _prepared(rows, columns, precision)
    if out is None:
        out = rows.new_empty(len(rows), dtype=torch.float32)
    if len(rows):
        plan(
            "forward", "lse", rows, columns, exclude, precision, capability(rows),
            scale=_vector(temperature, rows), scale_of=_side(temperature, temperature_of),
            map=map, tensors={"out": out},
        ).run()  # fmt: skip
    return out


def lse_grad(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Excluded,
    row_weight: Tensor | None,
    row_lse: Tensor | None,
    column_weight: Tensor | None = None,
    column_lse: Tensor | None = None,
    map: Map | None = None,
    *,
    temperature_of: Side = "rows",
    precision: str = "tf32x3",
    out: Tensor | None = None,
) -> Tensor:
    """(n, D) gradient of the rows from the weights of the logsumexps of rows and of columns.

    out_i = Σ_j [row_weight_i·e^(l_ij − row_lse_i) + column_weight_j·e^(l_ij − column_lse_j)]
                ·(dl/ds)_ij·columns_j
    Weights of either side may be absent. The gradient of the columns is this function with sides,
    weights and `temperature_of` swapped and `exclude.transposed()`. dτ needs no kernel:
    dL/dτ_i = −(rows_i·out_i)/τ_i. The slope of "dystress" is 1/τ(s), that of "artanh" 2/(1 − s²).
    `out`: as for `lse`.
    """
    rows, columns = _prepared(rows, columns, precision)
    if out is None:
        out = rows.new_empty(rows.shape, dtype=torch.float32)
    if rows.numel():
        plan(
            "backward", "lse", rows, columns, exclude, precision, capability(rows),
            scale=_vector(temperature, rows), scale_of=_side(temperature, temperature_of), map=map,
            tensors={
                "row_weight": _vector(row_weight, rows), "row_lse": _vector(row_lse, rows),
                "column_weight": _vector(column_weight, rows),
                "column_lse": _vector(column_lse, rows), "out": out, "row_total": None,
            },
        ).run()  # fmt: skip
    return out


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Excluded,
    function: Function = "softplus",
    *,
    precision: str = "tf32x3",
) -> Tensor:
    """(n,) Σ_j f(offset_i + scale·s_ij); `scale` 0-d, `offset` 0-d or one per row."""
    rows, columns = _prepared(rows, columns, precision)
    out = rows.new_empty(len(rows), dtype=torch.float32)
    if len(rows):
        plan(
            "forward", function, rows, columns, exclude, precision, capability(rows),
            scale=_vector(scale, rows), offset=_vector(offset, rows),
            offset_of=_side(offset, "rows"), tensors={"out": out},
        ).run()  # fmt: skip
    return out


def pair_sum_grad(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Excluded,
    weight: Tensor,
    function: Function = "softplus",
    *,
    precision: str = "tf32x3",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of Σ_i weight_i·pair_sum_i: rows (n, D), columns (m, D), scale, offset (as given).

    With G_ij = weight_i·f'(offset_i + scale·s_ij): scale·G·columns, scale·Gᵀ·rows, Σ_ij G_ij·s_ij,
    Σ_j G_ij.
    """
    rows, columns = _prepared(rows, columns, precision)
    scale, offset, weight = (x.to(rows.device, torch.float32) for x in (scale, offset, weight))
    by_row, total = _pair_weighted(
        rows, columns, scale, offset, exclude, weight, function, precision, "rows"
    )
    by_column, _ = _pair_weighted(
        columns, rows, scale, offset, exclude.transposed(), weight, function, precision, "columns"
    )
    d_scale = (by_row * rows).sum()
    d_offset = total.sum() if offset.ndim == 0 else total
    return scale * by_row, scale * by_column, d_scale, d_offset


def _pair_weighted(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Excluded,
    weight: Tensor,
    function: Function,
    precision: str,
    weight_of: Side,
) -> tuple[Tensor, Tensor]:
    """(n, D) Σ_j G_ij·columns_j and (n,) Σ_j G_ij; weight and offset belong to `weight_of`."""
    out = rows.new_empty(rows.shape, dtype=torch.float32)
    total = rows.new_empty(len(rows), dtype=torch.float32)
    if rows.numel():
        mine = weight_of == "rows"
        plan(
            "backward", function, rows, columns, exclude, precision, capability(rows),
            scale=_vector(scale, rows), offset=_vector(offset, rows),
            offset_of=_side(offset, weight_of),
            tensors={
                "row_weight": _vector(weight, rows) if mine else None, "row_lse": None,
                "column_weight": None if mine else _vector(weight, rows), "column_lse": None,
                "out": out, "row_total": total if mine else None,
            },
        ).run()  # fmt: skip
    return out, total


def self_check() -> bool:
    """Whether the kernels agree with plain torch on this machine's current CUDA device.

    Cached per process and on disk; see `triton_check`.
    """
    from macl.losses.kernels.triton_check import passes

    return passes()


def _prepared(rows: Tensor, columns: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Both sides contiguous, and rounded where tf32 was asked for."""
    if rows.ndim != 2 or columns.ndim != 2 or rows.shape[1] != columns.shape[1]:
        raise ValueError(
            "rows (n, D) and columns (m, D) need the same D, got "
            f"{tuple(rows.shape)} and {tuple(columns.shape)}."
        )
    if rows.dtype != columns.dtype:
        raise TypeError(f"rows are {rows.dtype} and columns {columns.dtype}; cast one of them.")
    same = columns is rows
    kind = configs.arithmetic(rows.dtype, precision)
    rows = _ready(rows, kind)
    return rows, rows if same else _ready(columns, kind)


def _ready(x: Tensor, kind: configs.Arithmetic) -> Tensor:
    x = x.contiguous()
    if kind != "tf32" or not x.numel():
        return x
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        grid = (triton.cdiv(x.numel(), BLOCK),)
        round_to_tf32[grid](x, out, x.numel(), BLOCK=BLOCK, enable_fp_fusion=False)
    return out


def _vector(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """As the kernels read it: where the rows are, float32, contiguous; mostly it is already."""
    return None if x is None else x.to(rows.device, torch.float32).contiguous()


def _side(x: Tensor | None, side: Side) -> str:
    return "all" if x is None or x.ndim == 0 else side
