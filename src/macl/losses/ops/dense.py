"""The operator where the matrix fits: held once, value and gradient from the same exponentials.

`closed` is the step that most calls take: the mean of f(x) with its gradient. Elsewhere
`tiled.forward` holds its exponentials as one tile, and `backward` reads them.
"""

from __future__ import annotations

from torch import Tensor

from macl.losses.objectives import FUNCTIONS
from macl.losses.ops import tiled
from macl.losses.ops.exclusions import Tile
from macl.losses.ops.maps import joined
from macl.losses.ops.tiled import LN2, LOG2E, Held, Operands, Plan


def backward(
    given: Operands, plan: Plan, held: Held, grad: Tensor, columns_too: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients to rows and columns, see `tiled.backward`; nothing that is held is changed."""
    rows, columns, n, m = given.wide()
    e, total, by_column, slope = held
    assert total is not None
    direction, temperature = plan.direction, given.scale
    if plan.exclude.may_empty(min(n, m)):
        total = tiled.nonzero(total)
    weight = tiled.divided(grad, temperature) / total
    first = weight[:n, None]
    if direction == "rows" and slope is None:
        # A number for each row goes to the thin side: no further n×m matrix is made.
        return (e @ columns).mul_(first), e.T @ (rows * first) if columns_too else None
    if direction == "both" and by_column is None:
        w = e * (first + weight[n:])
    else:
        w = e * first
        if by_column is not None:
            w.addcmul_(by_column, weight[n:])
        elif direction == "mirror":
            w = w + w.T
    if slope is not None:
        w *= slope
    return w @ columns, w.T @ rows if columns_too and direction != "mirror" else None


def closed(
    given: Operands, plan: Plan, function: str, positives: tuple[int, ...]
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]] | None:
    """Mean f(x), (k,) x, and rows and columns with the gradient of the mean, from one matrix.

        dL/dr_i = Σ_j (w_i + v_j)·E_ij·c_j − (positives),   w_i = f'(x_i)/(k·τ·Σ_j E_ij)

    Similarities, exponentials and weights overwrite each other, so that a small batch allocates one
    matrix. `positives` are excluded diagonals that hold every row's positive: the main one, or with
    "mirror" those of two views, one below the other. None where exponentials need their maximum
    subtracted, or an anchor may be alone.
    """
    rows, columns, temperature, _ = given
    n, m, map, direction = rows.shape[0], columns.shape[0], plan.map, plan.direction
    scale = tiled.exponent_scale(rows, temperature, map)
    if scale is None or plan.exclude.may_empty(min(n, m)):
        return None
    e, slope = tiled.logits_of(tiled.over(rows, temperature, scale), columns, map)
    half = n // 2
    at = e.diagonal()
    if positives == (half, -half):  # the entries (i, half + i) and (half + i, i)
        at = e.as_strided((2, half), (2 * half * half - half, 2 * half + 1), half)
    positive = (at * (LN2 if map is None else 1.0)).view(-1)
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
    e *= first if direction == "rows" else first + weight[-m:]
    at.copy_(grad.view(-1, at.shape[-1]).sum(0).neg_())
    if slope is not None:
        e *= slope
    slopes = [(rows, e @ columns)]
    if direction != "mirror":
        slopes.append((columns, e.T @ rows))
    return value, x, slopes
