"""Device functions that the Triton kernels share: one tile of similarities and its logits.

A kernel owns BM rows and streams the columns, BN at a time. Logits are kept in units of log 2, as
the hardware's exponential is a power of two.
"""

# Arguments of device functions are the compiler's own tensors, which have no types to state.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
HALF_PI = tl.constexpr(1.5707963267948966)
BELOW_ONE = tl.constexpr(1 - 2**-24)  # the largest float32 below 1


@triton.jit
def load_tile(base, count, first, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(ROWS, WIDTH) entries of a row-major matrix from column `first` on, 0 outside of it.

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
def product(a, b, sums, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """sums + a·b in float32. UPCAST: the interpreter multiplies bfloat16 as integers."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    if PRECISION == "half":
        sums = tl.dot(a, b, sums)
    else:
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit
def similarities(
    owned, row_base, row_count, column_tile, column_base, column_count,
    D: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """(BM, BN) inner products, from tiles already loaded where rows fit BD, else BD at a time."""
    s = tl.zeros((BM, BN), tl.float32)
    if BD >= D:
        s = product(owned, tl.trans(column_tile), s, PRECISION, UPCAST)
    else:
        for first in range(0, D, BD):
            a = load_tile(row_base, row_count, first, D, BM, BD)
            b = load_tile(column_base, column_count, first, D, BN, BD)
            s = product(a, tl.trans(b), s, PRECISION, UPCAST)
    return s


@triton.jit
def counted(
    i, j, n, m, row_groups, column_groups, diagonals,
    ONLY_GROUPS: tl.constexpr, DIAGONALS: tl.constexpr,
):  # fmt: skip
    """(BM, BN) whether a pair counts: inside the matrix and not excluded."""
    keep = (j < m)[None, :] & (i >= 0)[:, None]
    for d in tl.static_range(DIAGONALS):
        keep = keep & (j[None, :] - i[:, None] != diagonals[d])
    if row_groups is not None:
        left = tl.load(row_groups + i, mask=i < n, other=0)
        right = tl.load(column_groups + j, mask=j < m, other=0)
        same = left[:, None] == right[None, :]
        keep = keep & (same if ONLY_GROUPS else same == 0)
    return keep


@triton.jit
def per_entry(value, i, j, n, m, OF: tl.constexpr):
    """A number from memory, one per row as (BM, 1), or one per column as (1, BN)."""
    if OF == "rows":
        found = tl.load(value + i, mask=i < n, other=1.0)[:, None]
    elif OF == "columns":
        found = tl.load(value + j, mask=j < m, other=1.0)[None, :]
    else:
        found = tl.load(value)
    return found


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
def dystress_temperature(s, lowest, highest):
    """lowest + (highest − lowest)·sin²(πs/2), the sine by its series on [−1, 1], period 2."""
    s = s - 2 * tl.floor(0.5 * s + 0.5)
    x = s * HALF_PI
    q = x * x
    p = -1 / 39916800 + q * (1 / 6227020800)
    p = 1 / 362880 + q * p
    p = -1 / 5040 + q * p
    p = 1 / 120 + q * p
    p = -1 / 6 + q * p
    sine = x + x * (q * p)
    return lowest + (highest - lowest) * (sine * sine)


@triton.jit
def mapped(s, lowest, highest, MAP: tl.constexpr):
    """The logit of a similarity map in units of log 2, and dl/ds."""
    if MAP == "dystress":
        slope = 1 / dystress_temperature(s, lowest, highest)  # the temperature is a constant here
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
def softplus(x):
    """log(1 + eˣ) with a small relative error also where it is small (a bias of −10)."""
    y = tl.exp2(-tl.abs(x) * LOG2E)
    positive = tl.where(x > 0, x, x * 0)  # NaN stays NaN
    return positive + 2 * artanh_series(y / (2 + y))  # log1p(y) = 2 artanh(y / (2 + y))


@triton.jit
def sigmoid(x):
    """1 / (1 + e⁻ˣ); no overflow becomes NaN: 1 / ∞ = 0."""
    return 1 / (1 + tl.exp2(-x * LOG2E))


@triton.jit
def to_tf32(x):
    """x rounded to 11 significant bits: the tensor cores truncate. Not by bits: NaN stays NaN.

    Veltkamp's splitting; needs products and sums that are not fused.
    """
    high = x * 8193.0
    return high - (high - x)
