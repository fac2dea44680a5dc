"""The forward kernel: each program owns BM rows, streams all columns and reduces each row."""

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
    similarities,
    softplus,
    to_tf32,
)


@triton.jit(do_not_specialize=["n", "m", "diagonals", "lowest", "highest"])
def forward(
    rows, columns, scale, offset, row_groups, column_groups, diagonals, lowest, highest,
    out, n, m,
    D: tl.constexpr, REDUCTION: tl.constexpr, MAP: tl.constexpr,
    SCALE_OF: tl.constexpr, OFFSET_OF: tl.constexpr,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out_i = logsumexp_j l_ij ("lse"; `scale` holds τ), or Σ_j f(offset + scale·s_ij)."""
    top = tl.program_id(0) * BM
    i = top + tl.arange(0, BM)
    row_base = rows + top.to(tl.int64) * D
    row_count = n - top
    owned = i  # replaced where whole rows fit
    if BD >= D:
        owned = load_tile(row_base, row_count, 0, D, BM, BD)
    peak = tl.full((BM,), float("-inf"), tl.float32)
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
        if REDUCTION == "lse":
            if MAP is None:
                logit = s * (LOG2E / per_entry(scale, i, j, n, m, SCALE_OF))
            else:
                logit, _ = mapped(s, lowest, highest, MAP)
            logit = tl.where(keep, logit, float("-inf"))
            # The online maximum: the sum so far is rescaled whenever a larger logit appears. No
            # range of τ or s can overflow, so nothing has to be read by the host beforehand.
            larger = tl.maximum(peak, tl.max(logit, 1))
            centre = tl.where(larger == float("-inf"), 0.0, larger)  # −∞ − (−∞) would be NaN
            total = total * tl.exp2(peak - centre) + tl.sum(tl.exp2(logit - centre[:, None]), 1)
            peak = larger
        else:
            x = per_entry(offset, i, j, n, m, OFFSET_OF) + s * per_entry(
                scale, i, j, n, m, SCALE_OF
            )
            if REDUCTION == "softplus":
                x = softplus(x)
            total += tl.sum(tl.where(keep, x, 0.0), 1)
    if REDUCTION == "lse":
        # Exactly 0 marks a row without entries. `not total > 0` would hide a NaN as −∞.
        total = tl.where(total == 0, float("-inf"), (peak + tl.log2(total)) / LOG2E)
    tl.store(out + i, total, mask=i < n)


@triton.jit(do_not_specialize=["count"])
def round_to_tf32(x, out, count, BLOCK: tl.constexpr):
    """out = x rounded to tf32, once per call rather than once per tile."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(out + at, to_tf32(value), mask=at < count)
