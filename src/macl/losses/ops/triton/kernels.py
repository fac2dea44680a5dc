"""The Triton kernels: a program owns BM rows, streams columns BN at a time and reduces each row.

Rows and columns are float16 matrices (PARTS, n, D): one part, or two whose sum is a float32 number
to 22 bits, multiplied by three products. Products are summed in float32. Logits are in units of
log 2, as the hardware's exponential is a power of two.
"""

# Arguments of device functions are the compiler's own tensors, which have no types to state.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
HALF_PI = tl.constexpr(1.5707963267948966)
BELOW_ONE = tl.constexpr(1 - 2**-24)  # the largest float32 below 1
LARGEST = tl.constexpr(16384.0)  # of the scaled weights: float16 ends at 65504
BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["n", "m", "span", "diagonals", "low", "high"])
def forward(
    rows, columns, scale, offset, row_groups, column_groups, diagonals, low, high,
    out, n, m, span,
    D: tl.constexpr, PARTS: tl.constexpr, REDUCTION: tl.constexpr, MAP: tl.constexpr,
    SCALE_OF: tl.constexpr, OFFSET_OF: tl.constexpr,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr, STATS: tl.constexpr,
    UPCAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[split, :, i] = logsumexp_j l_ij ("lse"; `scale` holds τ), or Σ_j f(offset + scale·s_ij).

    j runs over the `span` columns of a split. STATS: then also Σ_j P_ij·l_ij and Σ_j P_ij·s_ij²
    with P_ij = e^(l_ij − lse_i).
    """
    top = tl.program_id(0) * BM
    first = tl.program_id(1) * span
    i = top + tl.arange(0, BM)
    row_base = rows + top.to(tl.int64) * D
    own, own_low = load_parts(row_base, n - top, n, 0, BD >= D, D, PARTS, BM, BD)
    peak = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    logits = tl.zeros((BM,), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for left in range(first, tl.minimum(first + span, m), BN):
        j = left + tl.arange(0, BN)
        column_base = columns + tl.cast(left, tl.int64) * D
        tile, tile_low = load_parts(column_base, m - left, m, 0, BD >= D, D, PARTS, BN, BD)
        s = similarities(
            own, own_low, row_base, n - top, n, tile, tile_low, column_base, m - left, m,
            D, PARTS, UPCAST, BM, BN, BD,
        )  # fmt: skip
        if REDUCTION == "lse":
            if MAP is None:
                logit = s * (LOG2E / per_entry(scale, i, j, n, m, SCALE_OF))
            else:
                logit, _ = mapped(s, low, high, MAP)
            logit = masked(
                logit, float("-inf"), i, j, top, left, n, m, row_groups, column_groups, diagonals,
                ONLY_GROUPS, DIAGONALS, BM, BN,
            )  # fmt: skip
            # The online maximum: the sum so far is rescaled whenever a larger logit appears. No
            # range of τ or s can overflow, so nothing has to be read by the host beforehand.
            larger = tl.maximum(peak, tl.max(logit, 1))
            center = tl.where(larger == float("-inf"), 0.0, larger)  # −∞ − (−∞) would be NaN
            share = tl.exp2(logit - center[:, None])
            before = tl.exp2(peak - center)
            total = total * before + tl.sum(share, 1)
            peak = larger
            if STATS:
                finite = tl.where(logit == float("-inf"), 0.0, logit)  # 0·(−∞) would be NaN
                logits = logits * before + tl.sum(share * finite, 1)
                squares = squares * before + tl.sum(share * s * s, 1)
        else:
            x = per_entry(offset, i, j, n, m, OFFSET_OF)
            x = pair_value(x + s * per_entry(scale, i, j, n, m, SCALE_OF), REDUCTION)
            x = masked(
                x, 0.0, i, j, top, left, n, m, row_groups, column_groups, diagonals,
                ONLY_GROUPS, DIAGONALS, BM, BN,
            )  # fmt: skip
            total += tl.sum(x, 1)
    results = 3 if STATS else 1
    out += tl.program_id(1).to(tl.int64) * results * n
    if REDUCTION == "lse":
        if STATS:
            none = total == 0
            tl.store(out + n + i, tl.where(none, 0.0, logits / total / LOG2E), mask=i < n)
            tl.store(out + 2 * n + i, tl.where(none, 0.0, squares / total), mask=i < n)
        # Exactly 0 marks a row without entries. `not total > 0` would hide a NaN as −∞.
        total = tl.where(total == 0, float("-inf"), (peak + tl.log2(total)) / LOG2E)
    tl.store(out + i, total, mask=i < n)


@triton.jit(do_not_specialize=["n", "m", "span", "diagonals", "low", "high"])
def backward(
    rows, columns, scale, offset, row_groups, column_groups, diagonals, low, high,
    row_weight, row_lse, column_weight, column_lse,
    out, row_total, n, m, span,
    D: tl.constexpr, PARTS: tl.constexpr, REDUCTION: tl.constexpr, MAP: tl.constexpr,
    SCALE_OF: tl.constexpr, OFFSET_OF: tl.constexpr,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr, UPCAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """out[split, i] = Σ_j W_ij·column_j; for pair sums also row_total[split, i] = Σ_j W_ij.

    "lse": W = [row_weight_i·e^(l_ij − row_lse_i) + column_weight_j·e^(l_ij − column_lse_j)]·dl/ds.
    Pair sums: W = weight·f'(offset + scale·s), the weight of the row or of the column.
    The tile is computed again, turned into W and multiplied, and the sums stay in registers: no
    atomics, so the same inputs give the same bits. A program sums CHUNKS times DV components; with
    CHUNKS = 0 all of them, from the tile that gave the similarities.
    """
    top = tl.program_id(0) * BM
    first = tl.program_id(1) * span
    last = tl.minimum(first + span, m)
    part = tl.program_id(2) * (DV * CHUNKS)
    i = top + tl.arange(0, BM)
    row_base = rows + top.to(tl.int64) * D
    own, own_low = load_parts(row_base, n - top, n, 0, BD >= D, D, PARTS, BM, BD)
    stretch = stretched(
        row_weight, row_lse, column_weight, column_lse, scale, i, first, last, n, low, high,
        MAP, SCALE_OF, BM,
    )  # fmt: skip
    sums = tl.zeros((BM, DV), tl.float32)
    second = sums
    third = sums
    total = tl.zeros((BM,), tl.float32)
    for left in range(first, last, BN):
        j = left + tl.arange(0, BN)
        column_base = columns + tl.cast(left, tl.int64) * D
        tile, tile_low = load_parts(column_base, m - left, m, 0, BD >= D, D, PARTS, BN, BD)
        s = similarities(
            own, own_low, row_base, n - top, n, tile, tile_low, column_base, m - left, m,
            D, PARTS, UPCAST, BM, BN, BD,
        )  # fmt: skip
        weights = tl.zeros((BM, BN), tl.float32)
        if REDUCTION == "lse":
            if MAP is None:
                slope = 1 / per_entry(scale, i, j, n, m, SCALE_OF)
                logit = s * (slope * LOG2E)
            else:
                logit, slope = mapped(s, low, high, MAP)
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
            x = per_entry(offset, i, j, n, m, OFFSET_OF)
            x += s * per_entry(scale, i, j, n, m, SCALE_OF)
            weights += sigmoid(x) if REDUCTION == "softplus" else x * 0 + 1  # NaN stays NaN
            if row_weight is not None:
                weights = weights * tl.load(row_weight + i, mask=i < n, other=0.0)[:, None]
            else:
                weights = weights * tl.load(column_weight + j, mask=j < m, other=0.0)[None, :]
        # An excluded pair may have e^(l − lse) = ∞ (all others far below it), and a column past the
        # end has s = 0: both must be 0 before the product, as ∞·0 is NaN.
        weights = masked(
            weights, 0.0, i, j, top, left, n, m, row_groups, column_groups, diagonals,
            ONLY_GROUPS, DIAGONALS, BM, BN,
        )  # fmt: skip
        if row_total is not None:
            total += tl.sum(weights, 1)
        weights = weights * stretch[:, None]
        high_part = weights.to(tl.float16)
        low_part = high_part
        if PARTS == 2:
            low_part = (weights - high_part.to(tl.float32)).to(tl.float16)
        if CHUNKS == 0:
            sums = product(high_part, low_part, tile, tile_low, sums, PARTS, UPCAST)
        else:
            sums = add_chunk(
                sums, high_part, low_part, column_base, m - left, m, part, D, PARTS, UPCAST, BN, DV
            )
        if CHUNKS > 1:
            second = add_chunk(
                second, high_part, low_part, column_base, m - left, m, part + DV,
                D, PARTS, UPCAST, BN, DV,
            )  # fmt: skip
        if CHUNKS > 2:
            third = add_chunk(
                third, high_part, low_part, column_base, m - left, m, part + 2 * DV,
                D, PARTS, UPCAST, BN, DV,
            )  # fmt: skip
    factor = 1 / stretch[:, None]
    if REDUCTION == "lse" and MAP is None and SCALE_OF != "columns":
        factor = factor / per_entry(scale, i, i, n, m, SCALE_OF)
    out += (tl.program_id(1).to(tl.int64) * n + top) * D
    store_chunk(out, sums * factor, n - top, part, D, BM, DV)
    if CHUNKS > 1:
        store_chunk(out, second * factor, n - top, part + DV, D, BM, DV)
    if CHUNKS > 2:
        store_chunk(out, third * factor, n - top, part + 2 * DV, D, BM, DV)
    if row_total is not None:  # noqa: SIM102 (decided by the compiler; the next while running)
        if part == 0:  # every part has the same totals
            tl.store(row_total + tl.program_id(1).to(tl.int64) * n + i, total, mask=i < n)


@triton.jit
def load_tile(base, count, first, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(ROWS, WIDTH) entries of a row-major matrix from component `first` on, 0 outside of it.

    `base` points to the first row and `count` rows exist from there: the caller advances the
    pointer by 64-bit numbers, so that the offsets in here fit 32 bits.
    """
    r = tl.arange(0, ROWS)
    d = first + tl.arange(0, WIDTH)
    inside = (r < count)[:, None]
    if D % WIDTH != 0:
        inside = inside & (d < D)[None, :]
    return tl.load(base + r[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def load_parts(
    base, count, height, first, WANTED: tl.constexpr,
    D: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The same of both parts (of matrices of `height` rows); a number twice if not WANTED."""
    tile = count
    low = count
    if WANTED:
        tile = load_tile(base, count, first, D, ROWS, WIDTH)
        low = tile
        if PARTS == 2:
            low = load_tile(base + tl.cast(height, tl.int64) * D, count, first, D, ROWS, WIDTH)
    return tile, low


@triton.jit
def product(a, a_low, b, b_low, sums, PARTS: tl.constexpr, UPCAST: tl.constexpr):
    """sums + a·b in float32. UPCAST: the interpreter would sum in float16."""
    if UPCAST:
        a, a_low = a.to(tl.float32), a_low.to(tl.float32)
        b, b_low = b.to(tl.float32), b_low.to(tl.float32)
    if PARTS == 2:  # the product of the low parts is below the rounding of float32
        sums = tl.dot(a_low, b, sums)
        sums = tl.dot(a, b_low, sums)
    return tl.dot(a, b, sums)


@triton.jit
def similarities(
    own, own_low, row_base, row_count, n, tile, tile_low, column_base, column_count, m,
    D: tl.constexpr, PARTS: tl.constexpr, UPCAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """(BM, BN) inner products, from tiles already loaded where rows fit BD, else BD at a time."""
    s = tl.zeros((BM, BN), tl.float32)
    if BD >= D:
        s = product(own, own_low, tl.trans(tile), tl.trans(tile_low), s, PARTS, UPCAST)
    else:
        for first in range(0, D, BD):
            a, a_low = load_parts(row_base, row_count, n, first, True, D, PARTS, BM, BD)
            b, b_low = load_parts(column_base, column_count, m, first, True, D, PARTS, BN, BD)
            s = product(a, a_low, tl.trans(b), tl.trans(b_low), s, PARTS, UPCAST)
    return s


@triton.jit
def add_chunk(
    sums, weights, weights_low, column_base, column_count, m, first,
    D: tl.constexpr, PARTS: tl.constexpr, UPCAST: tl.constexpr, BN: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """sums + weights·columns for the DV components from `first` on."""
    tile, low = load_parts(column_base, column_count, m, first, True, D, PARTS, BN, DV)
    return product(weights, weights_low, tile, low, sums, PARTS, UPCAST)


@triton.jit
def store_chunk(base, sums, count, first, D: tl.constexpr, BM: tl.constexpr, DV: tl.constexpr):
    """Write (BM, DV) of a row-major matrix, as `load_tile` reads it."""
    r = tl.arange(0, BM)
    d = first + tl.arange(0, DV)
    inside = (r < count)[:, None] & (d < D)[None, :]
    tl.store(base + r[:, None] * D + d[None, :], sums, mask=inside)


@triton.jit
def masked(
    x, fill, i, j, top, left, n, m, row_groups, column_groups, diagonals,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """x, or `fill` where a pair is outside the matrix or excluded."""
    if row_groups is not None:
        mine = tl.load(row_groups + i, mask=i < n, other=0)
        theirs = tl.load(column_groups + j, mask=j < m, other=0)
        same = mine[:, None] == theirs[None, :]
        x = tl.where(same if ONLY_GROUPS else same == 0, x, fill)
    # Most tiles contain neither the end of the matrix nor a diagonal: nothing per entry there.
    touched = left + BN > m
    for d in tl.static_range(DIAGONALS):
        touched |= (left + BN > top + diagonals[d]) & (left < top + BM + diagonals[d])
    if touched:
        keep = (j < m)[None, :] & (i >= 0)[:, None]
        for d in tl.static_range(DIAGONALS):
            keep = keep & (j[None, :] - i[:, None] != diagonals[d])
        x = tl.where(keep, x, fill)
    return x


@triton.jit
def per_entry(value, i, j, n, m, OF: tl.constexpr):
    """A number from memory, one per row as (BM, 1), or one per column as (1, BN)."""
    if OF == "rows":
        number = tl.load(value + i, mask=i < n, other=1.0)[:, None]
    elif OF == "columns":
        number = tl.load(value + j, mask=j < m, other=1.0)[None, :]
    else:
        number = tl.load(value)
    return number


@triton.jit
def stretched(
    row_weight, row_lse, column_weight, column_lse, scale, i, first, last, n, low, high,
    MAP: tl.constexpr, SCALE_OF: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """(BM,) factors that take the weights of each row to the range of float16.

    e^(l − lse) and f' are at most 1, so |W| is at most what a weight and a slope can be. NaN and ∞
    are passed over: they reach the sums by themselves.
    """
    most = tl.zeros((BM,), tl.float32)
    if row_weight is not None:
        most += weight_bound(row_weight, row_lse, i, n, low, high, MAP)
    if column_weight is not None or SCALE_OF == "columns":
        weights = tl.zeros((BLOCK,), tl.float32)
        slopes = tl.zeros((BLOCK,), tl.float32) + (1e-30 if SCALE_OF == "columns" else 1.0)
        for left in range(first, last, BLOCK):
            j = left + tl.arange(0, BLOCK)
            if column_weight is not None:
                bound = weight_bound(column_weight, column_lse, j, last, low, high, MAP)
                weights = tl.maximum(weights, bound)
            if SCALE_OF == "columns":
                tau = tl.load(scale + j, mask=j < last, other=float("inf"))
                slopes = tl.maximum(slopes, 1 / tau)
        most = (most + tl.max(weights, 0)) * tl.max(slopes, 0)
    usable = (most > 1e-30) & (most < 1e30)
    return tl.where(usable, LARGEST / tl.where(usable, most, 1.0), 1.0)


@triton.jit
def weight_bound(weight, lse, k, count, low, high, MAP: tl.constexpr):
    """|weight| times the largest e^(l − lse)·dl/ds that a map allows."""
    most = tl.abs(tl.load(weight + k, mask=k < count, other=0.0))
    if MAP == "dystress":
        most = most / tl.minimum(low, high)
    if MAP == "artanh":
        # With u = e^l ≤ Z = e^lse: (u/Z)·dl/ds = (1 + u)²/(2Z) ≤ 1 + cosh(lse).
        z = tl.load(lse + k, mask=k < count, other=0.0) * LOG2E
        most = most * (1 + 0.5 * (tl.exp2(z) + tl.exp2(-z)))
    return tl.where(most < float("inf"), most, 0.0)


@triton.jit
def mapped(s, low, high, MAP: tl.constexpr):
    """The logit of a similarity map in units of log 2, and dl/ds."""
    if MAP == "dystress":
        slope = 1 / dystress_temperature(s, low, high)  # the temperature is a constant here
        logit = s * slope * LOG2E
    else:
        tl.static_assert(MAP == "artanh")
        # Rounding may reach or exceed 1, where the logit is infinite. `where` keeps NaN.
        s = tl.where(s > BELOW_ONE, BELOW_ONE, s)
        s = tl.where(s < -BELOW_ONE, -BELOW_ONE, s)
        small = tl.where(tl.abs(s) > 1 / 3, 0.0, s)
        large = tl.log2((1 + s) / (1 - s))
        logit = tl.where(tl.abs(s) > 1 / 3, large, artanh_series(small) * (2 * LOG2E))
        slope = 2 / ((1 - s) * (1 + s))
    return logit, slope


@triton.jit
def dystress_temperature(s, low, high):
    """low + (high − low)·sin²(πs/2), the sine by its series on [−1, 1], period 2."""
    s = s - 2 * tl.floor(0.5 * s + 0.5)
    x = s * HALF_PI
    q = x * x
    p = -1 / 39916800 + q * (1 / 6227020800)
    p = 1 / 362880 + q * p
    p = -1 / 5040 + q * p
    p = 1 / 120 + q * p
    p = -1 / 6 + q * p
    sine = x + x * (q * p)
    return low + (high - low) * (sine * sine)


@triton.jit
def artanh_series(z):
    """artanh z for |z| ≤ 1/3, relative error 1e-7: the log of the hardware is worse near 1."""
    q = z * z
    p = 1 / 11 + q * (1 / 13)
    p = 1 / 9 + q * p
    p = 1 / 7 + q * p
    p = 1 / 5 + q * p
    p = 1 / 3 + q * p
    return z + z * (q * p)


@triton.jit
def pair_value(x, FUNCTION: tl.constexpr):
    """f(x) of a pair sum; NaN stays NaN."""
    if FUNCTION == "softplus":
        value = softplus(x)
    elif FUNCTION == "nll_over_scale":  # softplus(x)/σ(x), which tends to 1 as x → −∞
        x = tl.where(x < -80.0, -80.0, x)
        value = softplus(x) * (1 + tl.exp2(-x * LOG2E))
    elif FUNCTION == "one":
        value = x * 0 + 1
    else:
        tl.static_assert(FUNCTION == "identity")
        value = x
    return value


@triton.jit
def softplus(x):
    """log(1 + eˣ) with a small relative error also where it is small (a bias of −10)."""
    y = tl.exp2(-tl.abs(x) * LOG2E)
    positive = tl.where(x > 0, x, x * 0)  # NaN stays NaN
    return positive + 2 * artanh_series(y / (2 + y))  # log1p(y) = 2 artanh(y / (2 + y))


@triton.jit
def sigmoid(x):
    """1 / (1 + e⁻ˣ); no overflow becomes NaN: 1 / ∞ = 0."""
    return 1 / (1 + tl.exp2(-x * LOG2E))
