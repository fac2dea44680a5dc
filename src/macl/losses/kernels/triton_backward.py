"""The backward kernel: each program owns BM rows and DV of their components.

It computes the tiles of similarities again, turns each into weights W and adds W·columns in
registers: no atomics, so the same inputs give the same bits. The gradient of the columns is the
same kernel with the sides swapped.
"""

# Arguments of device functions are the compiler's own tensors, which have no types to state.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from macl.losses.kernels.triton_tiles import (
    LOG2E,
    counted,
    load_tile,
    mapped,
    per_entry,
    product,
    sigmoid,
    similarities,
    to_tf32,
)


@triton.jit(do_not_specialize=["n", "m", "diagonals", "lowest", "highest"])
def backward(
    rows, columns, scale, offset, row_groups, column_groups, diagonals, lowest, highest,
    row_weight, row_lse, column_weight, column_lse,
    out, row_total, n, m,
    D: tl.constexpr, REDUCTION: tl.constexpr, MAP: tl.constexpr,
    SCALE_OF: tl.constexpr, OFFSET_OF: tl.constexpr,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr,
    PRECISION: tl.constexpr, WEIGHTED: tl.constexpr, UPCAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    """out_i = Σ_j W_ij·column_j; for pair sums also row_total_i = Σ_j W_ij.

    "lse": W = [row_weight_i·e^(l_ij − row_lse_i) + column_weight_j·e^(l_ij − column_lse_j)]·dl/ds.
    Pair sums: W = weight·f'(offset + scale·s), the weight of the row or of the column.
    WEIGHTED: the precision of W·columns.
    """
    top = tl.program_id(0) * BM
    part = tl.program_id(1) * DV
    i = top + tl.arange(0, BM)
    row_base = rows + top.to(tl.int64) * D
    row_count = n - top
    owned = i
    if BD >= D:
        owned = load_tile(row_base, row_count, 0, D, BM, BD)
    sums = tl.zeros((BM, DV), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for left in range(0, m, BN):
        j = left + tl.arange(0, BN)
        column_base = columns + tl.cast(left, tl.int64) * D
        column_tile = j
        if BD >= D:
            column_tile = load_tile(column_base, m - left, 0, D, BN, BD)
        s = similarities(
            owned, row_base, row_count, column_tile, column_base, m - left,
            D, PRECISION, UPCAST, BM, BN, BD,
        )  # fmt: skip
        keep = counted(i, j, n, m, row_groups, column_groups, diagonals, ONLY_GROUPS, DIAGONALS)
        weights = tl.zeros((BM, BN), tl.float32)
        if REDUCTION == "lse":
            if MAP is None:
                slope = 1 / per_entry(scale, i, j, n, m, SCALE_OF)
                logit = s * (slope * LOG2E)
            else:
                logit, slope = mapped(s, lowest, highest, MAP)
            if row_weight is not None:
                weight = tl.load(row_weight + i, mask=i < n, other=0.0)
                lse = tl.load(row_lse + i, mask=i < n, other=0.0) * LOG2E
                weights += weight[:, None] * tl.exp2(logit - lse[:, None])
            if column_weight is not None:
                weight = tl.load(column_weight + j, mask=j < m, other=0.0)
                lse = tl.load(column_lse + j, mask=j < m, other=0.0) * LOG2E
                weights += weight[None, :] * tl.exp2(logit - lse[None, :])
            if MAP is not None or SCALE_OF == "columns":
                weights = weights * slope  # else the same for all of a row: once, at the end
        else:
            if REDUCTION == "softplus":
                x = per_entry(offset, i, j, n, m, OFFSET_OF)
                weights += sigmoid(x + s * per_entry(scale, i, j, n, m, SCALE_OF))
            else:
                weights += s * 0 + 1  # the slope of the identity; NaN stays NaN
            if row_weight is not None:
                weights = weights * tl.load(row_weight + i, mask=i < n, other=0.0)[:, None]
            else:
                weights = weights * tl.load(column_weight + j, mask=j < m, other=0.0)[None, :]
        # An excluded pair may have e^(l − lse) = ∞ (all others far below it), and a column past the
        # end has s = 0: both must be 0 before the product, as ∞·0 is NaN.
        weights = tl.where(keep, weights, 0.0)
        if row_total is not None:
            total += tl.sum(weights, 1)
        values = column_tile
        if RELOAD:
            values = load_tile(column_base, m - left, part, D, BN, DV)
        if WEIGHTED == "tf32":
            # float16 has too small a range for weights; tf32 holds its numbers exactly.
            sums = product(to_tf32(weights), values.to(tl.float32), sums, WEIGHTED, UPCAST)
        else:
            sums = product(weights.to(values.dtype), values, sums, WEIGHTED, UPCAST)
    if REDUCTION == "lse" and MAP is None and SCALE_OF != "columns":
        sums = sums / per_entry(scale, i, i, n, m, SCALE_OF)
    d = part + tl.arange(0, DV)
    inside = (i < n)[:, None] & (d < D)[None, :]
    row = tl.arange(0, BM)[:, None]
    tl.store(out + top.to(tl.int64) * D + row * D + d[None, :], sums, mask=inside)
    if row_total is not None:  # noqa: SIM102 (decided by the compiler; the next while running)
        if part == 0:  # every part has the same totals
            tl.store(row_total + i, total, mask=i < n)
