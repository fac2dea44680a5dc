"""The operator where the matrix fits: value and gradient of the mean of f(x) from one matrix.

This is the step that most calls take. Elsewhere `tiled` holds its exponentials as one tile for the
backward pass.
"""

from __future__ import annotations

from torch import Tensor

from macl.losses.objectives import FUNCTIONS
from macl.losses.ops import tiled
from macl.losses.ops.exclusions import Tile
from macl.losses.ops.maps import joined
from macl.losses.ops.tiled import LN2, LOG2E, Operands, Plan


def closed(
    given: Operands, plan: Plan, function: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """Mean f(x), (k,) x, and the gradient of the mean to rows and columns, from one matrix.

        dL/dr_i = Σ_j (w_i + v_j)·E_ij·c_j − (positives),   w_i = f'(x_i)/(k·τ·Σ_j E_ij)

    Similarities, exponentials and weights overwrite each other, so that a small batch allocates one
    matrix. Positives are on the diagonal, or with "mirror" the rows are two views, one below the
    other. None where exponentials need their maximum subtracted, or an anchor may be alone.
    """
    rows, columns, temperature, _ = given
    n, m, map, direction = rows.shape[0], columns.shape[0], plan.map, plan.direction
    scale = tiled.exponent_scale(rows, temperature, map)
    if scale is None or plan.exclude.may_empty(min(n, m)):
        return None
    e, slope = tiled.logits_of(tiled.over(rows, temperature, scale), columns, map)
    # A view of the positives' entries: (i, i), or of two views (i, i + n/2) and (i + n/2, i).
    half = n // 2
    at = e.diagonal()
    if direction == "mirror":
        at = e.as_strided((2, half), (n * half - half, n + 1), half)
    positive = (at * (LN2 if map is None else 1.0)).flatten()
    positive = positive.repeat(2) if direction == "both" else positive
    e = e.exp2_() if map is None else e.exp_()
    plan.exclude.apply(e, Tile(0, n, 0, m), 0.0)
    total = joined([e.sum(1), e.sum(0)]) if direction == "both" else e.sum(1)
    x = total.log().sub_(positive)
    f = FUNCTIONS[function]
    value = f.value(x).mean()
    share = 1 / x.shape[0] if temperature is None else scale / (LOG2E * x.shape[0])
    grad = f.derivative(x).mul_(share)
    weight = grad / total
    first = weight[:n, None]
    if direction == "rows":
        e *= first
    else:
        e *= first + (first.T if direction == "mirror" else weight[n:])
    at.copy_(grad.view(-1, at.shape[-1]).sum(0).neg_())
    if slope is not None:
        e *= slope
    return value, x, e @ columns, None if direction == "mirror" else e.T @ rows
