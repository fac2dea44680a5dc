"""Kernels of what a loss computes besides the N×N part: rows of length 1, anchors, their gradient.

Each takes one pass over (N, D) views or over the anchors where plain torch takes a launch for every
operation. Row i of the first view and row i of the second, its positive, belong to one program.
"""

# Arguments of device functions are the compiler's own tensors, which have no types to state.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from macl.losses.kernels.triton_tiles import LOG2E, load_tile, softplus

# As in `losses.unit`: gradients grow as 1/|z| and would overflow below it.
TINY = tl.constexpr(float(2.0**-126) ** 0.9)


@triton.jit
def store_tile(base, count, first, tile, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The inverse of `load_tile`, in the type of the memory."""
    r = tl.arange(0, ROWS)
    d = first + tl.arange(0, WIDTH)
    inside = (r < count)[:, None] & (d < D)[None, :]
    at = base + r[:, None] * D + d[None, :]
    tl.store(at, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def scale_of(base, count, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """(BM, 1) b = max_d |z_d|, ∞ for rows of zeros, and (BM, 1) |z/b|, so that |z| is b·|z/b|.

    No square leaves the range of float32. A row with NaN or ∞ has |z/b| = NaN.
    """
    largest = tl.zeros((BM,), tl.float32)
    for first in range(0, D, BD):
        z = load_tile(base, count, first, D, BM, BD).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(z), 1))
    bound = tl.where(largest > TINY, largest, float("inf"))[:, None]
    squares = tl.zeros((BM,), tl.float32)
    for first in range(0, D, BD):
        z = tl.div_rn(load_tile(base, count, first, D, BM, BD).to(tl.float32), bound)
        squares += tl.sum(z * z, 1)
    norm = tl.sqrt_rn(squares)
    return bound, tl.where(norm < 0.5, 0.5, norm)[:, None]  # at least 1, but for rows of zeros


@triton.jit(do_not_specialize=["n"])
def normalise(
    z1, z2, rows, lengths, positive, n, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr
):
    """u = z/|z| of both views, one below the other, |z|, and s_i⁺ = u_i·u_{n+i}.

    A row of zeros stays zero and has the length ∞, by which its gradient is divided.
    """
    top = tl.program_id(0) * BM
    start = top.to(tl.int64) * D
    second = tl.cast(n, tl.int64) * D
    count = n - top
    bound1, norm1 = scale_of(z1 + start, count, D, BM, BD)
    bound2, norm2 = scale_of(z2 + start, count, D, BM, BD)
    s = tl.zeros((BM,), tl.float32)
    for first in range(0, D, BD):
        u1 = load_tile(z1 + start, count, first, D, BM, BD).to(tl.float32)
        u2 = load_tile(z2 + start, count, first, D, BM, BD).to(tl.float32)
        u1 = tl.div_rn(tl.div_rn(u1, bound1), norm1)
        u2 = tl.div_rn(tl.div_rn(u2, bound2), norm2)
        store_tile(rows + start, count, first, u1, D, BM, BD)
        store_tile(rows + second + start, count, first, u2, D, BM, BD)
        s += tl.sum(u1 * u2, 1)
    i = top + tl.arange(0, BM)
    tl.store(positive + i, s, mask=i < n)
    at = lengths + i[:, None]
    tl.store(at, bound1 * norm1, mask=(i < n)[:, None])
    tl.store(at + n, bound2 * norm2, mask=(i < n)[:, None])


@triton.jit
def objective(x, FUNCTION: tl.constexpr):
    """f(x) and f'(x) of a name in `functions`."""
    slope = x * 0 + 1  # NaN stays NaN
    if FUNCTION == "identity":
        value = x
    elif FUNCTION == "one":
        value = slope
    else:
        if FUNCTION == "nll_over_scale":
            x = tl.where(x < -80.0, -80.0, x)  # the ratio is 1 below it; both parts underflow
        # σ(x) from the exponential that softplus takes: the error of e^−|x| leaves their ratio.
        y = tl.exp2(-tl.abs(x) * LOG2E)
        scale = tl.where(x > 0, 1.0, y) / (1 + y)
        value = softplus(x)
        if FUNCTION == "softplus":
            slope = scale
        else:
            tl.static_assert(FUNCTION == "nll_over_scale")
            value = value / scale
    return value, slope


@triton.jit(do_not_specialize=["n"])
def anchors(
    lse, positive, temperature, mean, weights, n,
    FUNCTION: tl.constexpr, SYMMETRIC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """L = Σ_i f(x_i)/count, x_i = lse_i − s_i⁺/τ, and weights_i = dL/dx_i = f'(x_i)/count.

    `count` is n, or 2n with SYMMETRIC, where anchors i and n + i have the same s⁺. One program
    takes all of them: a few numbers each, where a sum over several programs would be one more
    launch.
    """
    count = n
    if SYMMETRIC:
        count = 2 * n
    tau = tl.load(temperature)
    total = tl.zeros((BM,), tl.float32)
    for first in range(0, count, BM):
        i = first + tl.arange(0, BM)
        inside = i < count
        s = tl.load(positive + tl.where(i < n, i, i - n), mask=inside, other=0.0)
        x = tl.load(lse + i, mask=inside, other=0.0) - s / tau
        value, slope = objective(x, FUNCTION)
        total += tl.where(inside, value, 0.0)
        tl.store(weights + i, slope / count, mask=inside)
    tl.store(mean, tl.sum(total, 0) / count)


@triton.jit(do_not_specialize=["n"])
def project(
    pulls, rows, lengths, weights, temperature, grad, out, n,
    D: tl.constexpr, SYMMETRIC: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dL/dz = grad·(g − u⟨u, g⟩)/|z| with g_i = pulls_i − (weights_i + weights_{n+i})·u_{n+i}/τ.

    `pulls` is the gradient of the logsumexps to the unit rows, to which the positive's is added.
    SYMMETRIC: the rows of the second view are anchors too. `out` may be `pulls` itself.
    """
    top = tl.program_id(0) * BM
    start = top.to(tl.int64) * D
    second = tl.cast(n, tl.int64) * D
    count = n - top
    i = (top + tl.arange(0, BM))[:, None]
    inside = i < n
    weight = tl.load(weights + i, mask=inside, other=0.0)
    if SYMMETRIC:
        weight += tl.load(weights + n + i, mask=inside, other=0.0)
    weight = weight / tl.load(temperature)
    along1 = tl.zeros((BM,), tl.float32)
    along2 = tl.zeros((BM,), tl.float32)
    for first in range(0, D, BD):
        u1 = load_tile(rows + start, count, first, D, BM, BD)
        u2 = load_tile(rows + second + start, count, first, D, BM, BD)
        g1 = load_tile(pulls + start, count, first, D, BM, BD) - weight * u2
        g2 = load_tile(pulls + second + start, count, first, D, BM, BD) - weight * u1
        along1 += tl.sum(u1 * g1, 1)
        along2 += tl.sum(u2 * g2, 1)
    factor = tl.load(grad)
    length1 = tl.load(lengths + i, mask=inside, other=1.0)
    length2 = tl.load(lengths + n + i, mask=inside, other=1.0)
    for first in range(0, D, BD):
        u1 = load_tile(rows + start, count, first, D, BM, BD)
        u2 = load_tile(rows + second + start, count, first, D, BM, BD)
        g1 = load_tile(pulls + start, count, first, D, BM, BD) - weight * u2
        g2 = load_tile(pulls + second + start, count, first, D, BM, BD) - weight * u1
        g1 = (g1 - u1 * along1[:, None]) * factor / length1
        g2 = (g2 - u2 * along2[:, None]) * factor / length2
        store_tile(out + start, count, first, g1, D, BM, BD)
        store_tile(out + second + start, count, first, g2, D, BM, BD)
