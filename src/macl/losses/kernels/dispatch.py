"""A logsumexp and its gradients from whichever implementation is selected, without autograd."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from macl.losses.kernels import cpu, select, torch_tiles
from macl.losses.kernels.interface import Plan, wide


class Values(NamedTuple):
    """Results of a pass over the similarities."""

    by_row: Tensor
    """(n,) logsumexp."""
    by_column: Tensor | None = None
    """(m,) for the direction "both"."""
    positive: Tensor | None = None
    """(n,) logits on the diagonals `plan.positives`, in plain torch."""
    mean: Tensor | None = None
    """(n,) mean logit with `plan.mean`."""


def values(rows: Tensor, columns: Tensor, temperature: Tensor | None, plan: Plan) -> Values:
    """The logsumexps and what else the plan asks for."""
    backend = select.backend(rows, plan.kernel, plan.map)
    exclude, direction, map = plan.exclude, plan.direction, plan.map
    common = (rows, columns, temperature, exclude, map)
    both, by_column = direction == "both", None
    if backend is torch_tiles or (plan.mean and backend is cpu):
        by_row, positive, mean, by_column = torch_tiles.lse_and_more(
            *common, plan.positives, plan.mean, both
        )
    elif backend is cpu:
        return Values(*cpu.lse_all(rows, columns, temperature, exclude, direction, map))
    else:
        by_row, positive, mean = backend.lse(*common), None, None
        if plan.mean and temperature is not None:
            mean = mean_logit(rows, columns, temperature, plan, by_row)
    if both and by_column is None:
        by_column = backend.lse(columns, rows, temperature, exclude.transposed(), map)
    return Values(by_row, by_column, positive, mean)


def mean_logit(
    rows: Tensor, columns: Tensor, temperature: Tensor, plan: Plan, lse: Tensor
) -> Tensor:
    """(n,) Σ_j e^{l_ij − lse_i}·l_ij with l = s/τ: the mean logit under the softmax.

    From the gradient of the logsumexp to its rows, ⟨r_i, Σ_j P̂_ij·c_j/τ⟩: one more pass over the
    tiles. A row whose `lse` is −inf gets 0.
    """
    weight = torch.ones_like(lse)
    slope, _ = gradients(rows, columns, temperature, plan, (weight, lse), None, False)
    return (wide(rows) * slope).sum(1)


def gradients(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, Tensor],
    by_column: tuple[Tensor, Tensor] | None,
    columns_too: bool,
    positive_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(n, D) gradient to the rows and, if asked, (m, D) that to the columns.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors; the rows themselves in the direction "mirror".
        temperature: scalar, (n,), or None with a map.
        plan: as in the forward pass.
        by_row: (n,) gradient to the rows' logsumexp, (n,) logsumexp.
        by_column: the same of the columns for the direction "both".
        columns_too: whether the columns need a gradient. "mirror" returns all of it with the rows'.
        positive_weight: (n,) gradient to the positives' logits with `plan.apart`.

    Gradients of half-precision rows are float32.
    """
    backend = select.backend(rows, plan.kernel, plan.map)
    mirror = plan.direction == "mirror"
    other = by_row if mirror else by_column or (None, None)
    columns_too = columns_too and not mirror
    common: list[Any] = [rows, columns, temperature, plan.exclude, *by_row, *other, plan.map]
    if backend is cpu:
        d_rows, d_columns = backend.lse_grads(*common, columns_too, mirror)
    elif backend is torch_tiles:
        d_rows, d_columns = backend.lse_grads(*common, columns_too, plan.positives, positive_weight)
    else:
        d_rows, d_columns = backend.lse_grad(*common), None
        if columns_too:
            d_columns = backend.lse_grad(
                columns, rows, temperature, plan.exclude.transposed(),
                *other, *by_row, plan.map, temperature_of="columns",
            )  # fmt: skip
    return d_rows, d_columns


def temperature_gradient(rows: Tensor, d_rows: Tensor, temperature: Tensor, plan: Plan) -> Tensor:
    """The gradient to τ from that to the rows: ⟨r, dL/dr⟩ = Σ g·P̂·s/τ.

    For a scalar a pair counts once, or once from either end in the direction "mirror"; for one τ
    per row the sum is each row's own.
    """
    inner = wide(rows) * wide(d_rows)
    if temperature.ndim:
        return inner.sum(1) / -temperature
    return inner.sum() / ((-2.0 if plan.direction == "mirror" else -1.0) * temperature)
