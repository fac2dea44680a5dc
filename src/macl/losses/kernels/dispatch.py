"""A logsumexp and its gradients from whichever implementation is selected, without autograd."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl.losses.kernels import cpu, select, torch_tiles
from macl.losses.kernels.interface import Plan, wide


def values(
    rows: Tensor, columns: Tensor, temperature: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(n,) logsumexp by row; for the direction "both" (m,) by column; (n,) positives' logits."""
    backend = select.backend(rows, plan.kernel, plan.map)
    exclude, direction = plan.exclude, plan.direction
    if backend is cpu:
        return *cpu.lse_all(rows, columns, temperature, exclude, direction, plan.map), None
    common = (rows, columns, temperature, exclude, plan.map)
    by_row, positive = (
        torch_tiles.lse_and_positives(*common, plan.positives)
        if backend is torch_tiles
        else (backend.lse(*common), None)
    )
    if direction != "both":
        return by_row, None, positive
    by_column = backend.lse(columns, rows, temperature, exclude.transposed(), plan.map)
    return by_row, by_column, positive


def gradients(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    plan: Plan,
    by_row: tuple[Tensor, Tensor],
    by_column: tuple[Tensor, Tensor] | None,
    columns_too: bool,
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
        d_rows, d_columns = backend.lse_grads(*common, columns_too, plan.positives)
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
    inner = (wide(rows) * wide(d_rows)).sum(1)
    if temperature.ndim:
        return -inner / temperature
    return -inner.sum() / ((2.0 if plan.direction == "mirror" else 1.0) * temperature)
