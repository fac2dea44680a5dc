"""The streamed operator in plain torch: bands of whole rows, each row's maximum subtracted.

Right for any temperature, map and device, meta tensors included: nothing reads a value back to the
host. The band's height follows from the device's memory (`tiles.band_entries`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macl.losses.kernels import bands, tiles
from macl.losses.kernels.functions import FUNCTIONS
from macl.losses.kernels.interface import Exclusions, LogitMap, wide
from macl.losses.kernels.tiles import Tile


def lse(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    map: LogitMap | None = None,
) -> Tensor:
    """(n,) log Σ_j exp(l_ij), see `interface`."""
    return lse_and_more(rows, columns, temperature, exclude, map)[0]


def lse_and_more(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    map: LogitMap | None = None,
    positives: tuple[int, ...] = (),
    mean: bool = False,
    columns_too: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """`lse`, and from the same tiles what is asked for of the following.

    (n,) the logits on the diagonals `positives`; (n,) the `mean` logit of each row,
    Σ_j e^{l_ij − lse_i}·l_ij, 0 for a row without pairs; (m,) `lse` of the columns, where the
    matrix is one band.
    """
    rows, columns = wide(rows), wide(columns)
    if len(columns) == 0:
        zeros = rows.new_zeros((len(rows),)) if mean else None
        return rows.new_full((len(rows),), -math.inf), None, zeros, None
    scaled = bands.scaled(rows, temperature)
    n, by_column = len(rows), None
    sums, found, means = bands.ByRow(n), bands.ByRow(n), bands.ByRow(n)
    parts = tiles.bands(len(rows), len(columns), rows.device)
    for tile in parts:
        logits, _ = bands.logits(scaled, columns, tile, map)
        if positives:
            found.put(tile, bands.on_diagonals(logits, tile, positives))
        exclude.apply(logits, tile, -math.inf)
        if columns_too and len(parts) == 1:
            largest = bands.peak(logits.T, exclude.may_empty(len(rows)))
            by_column = (logits - largest).exp_().sum(0).log_().add_(largest)
        empty = exclude.may_empty(len(columns))
        peak = bands.peak(logits, empty)
        e = logits.sub_(peak[:, None]).exp_()
        total = e.sum(1)
        if mean:  # Σ_j e_j·log e_j/Σ_j e_j, and 0·log 0 = 0
            inside = torch.special.entr(e, out=e).sum(1)
            bound = total.clamp(min=torch.finfo(total.dtype).tiny) if empty else total
            means.put(tile, torch.addcdiv(peak, inside, bound, value=-1))
        sums.put(tile, total.log_().add_(peak))
    positive, mean_logit = found.whole if positives else None, means.whole if mean else None
    return sums.whole, positive, mean_logit, by_column


def lse_grad(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    row_weight: Tensor,
    row_lse: Tensor,
    column_weight: Tensor | None,
    column_lse: Tensor | None,
    map: LogitMap | None = None,
) -> Tensor:
    """(n, D) gradient to the rows, see `interface`."""
    return lse_grads(
        rows, columns, temperature, exclude, row_weight, row_lse, column_weight, column_lse, map
    )[0]


def lse_grads(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    row_weight: Tensor,
    row_lse: Tensor,
    column_weight: Tensor | None,
    column_lse: Tensor | None,
    map: LogitMap | None = None,
    columns_too: bool = False,
    positives: tuple[int, ...] = (),
    positive_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`lse_grad` and, if asked, (m, D) the columns' gradient from the same tiles.

    The logits on the diagonals `positives` are taken to be subtracted from the logsumexps, or
    where they are results of their own, without column weights other than the rows', to have the
    gradient (n,) `positive_weight`.
    """
    rows, columns = wide(rows), wide(columns)
    if len(columns) == 0:
        return torch.zeros_like(rows), torch.zeros_like(columns) if columns_too else None
    scaled = bands.scaled(rows, temperature)
    row_shift = _shift(row_lse, exclude.may_empty(len(columns)))
    parts = tiles.bands(len(rows), len(columns), rows.device)
    # A symmetric matrix in one band: the columns' part is the rows' part, transposed.
    transposes = len(parts) == 1 and column_lse is row_lse
    column_shift = None
    if transposes:
        column_weight = None
    elif column_lse is not None:
        same, empty = column_lse is row_lse, exclude.may_empty(len(rows))
        column_shift = row_shift if same else _shift(column_lse, empty)
    row_shift = row_shift[:, None]
    d_rows = bands.ByRow(len(rows))
    d_columns: Tensor | None = None
    for tile in parts:
        band = slice(tile.top, tile.bottom)
        logits, slope = bands.logits(scaled, columns, tile, map, slopes=True)
        exclude.apply(logits, tile, -math.inf)
        shift = row_shift[band]
        if column_shift is None or column_weight is None:
            p = logits.sub_(shift).exp_().mul_(row_weight[band, None])
        else:
            p = (logits - shift).exp_().mul_(row_weight[band, None])
            p.addcmul_(logits.sub_(column_shift).exp_(), column_weight)
        if positive_weight is None:
            bands.put(p, tile, positives, row_weight, column_weight, -1.0)
        else:
            twice = None if column_weight is None else positive_weight
            bands.put(p, tile, positives, positive_weight, twice, 1.0)
        if slope is not None:
            p.mul_(slope)
        if transposes:
            p = p + p.T
        d_rows.put(tile, p @ columns)
        if columns_too:
            part = p.T @ scaled[band]
            d_columns = part if d_columns is None else d_columns.add_(part)
    gradient = d_rows.whole
    if temperature is not None:
        gradient = gradient / bands.column(temperature.to(rows.dtype))
    return gradient, d_columns


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    function: str = "softplus",
) -> Tensor:
    """(n,) Σ_j f(offset_i + scale·s_ij), see `interface`."""
    rows, columns = wide(rows), wide(columns)
    value, scaled = FUNCTIONS[function].value, rows * scale.to(rows.dtype)
    sums = bands.ByRow(len(rows))
    for tile in tiles.bands(len(rows), len(columns), rows.device):
        values = value(_pair_logits(scaled, columns, offset, tile))
        exclude.apply(values, tile, 0.0)
        sums.put(tile, values.sum(1))
    return sums.whole


def pair_sum_grad(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    weight: Tensor,
    function: str = "softplus",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of Σ_i weight_i·pair_sum_i, see `interface`."""
    rows, columns = wide(rows), wide(columns)
    derivative, scale = FUNCTIONS[function].derivative, scale.to(rows.dtype)
    scaled, d_columns = rows * scale, None
    pulls, offsets = bands.ByRow(len(rows)), bands.ByRow(len(rows))
    for tile in tiles.bands(len(rows), len(columns), rows.device):
        band = slice(tile.top, tile.bottom)
        slopes = derivative(_pair_logits(scaled, columns, offset, tile))
        exclude.apply(slopes, tile, 0.0)
        slopes.mul_(weight[band, None])
        pulls.put(tile, slopes @ columns)
        part = slopes.T @ scaled[band]
        d_columns = part if d_columns is None else d_columns.add_(part)
        offsets.put(tile, slopes.sum(1))
    pull, d_offset = pulls.whole, offsets.whole
    d_scale = (rows * pull).sum()
    assert d_columns is not None
    return pull * scale, d_columns, d_scale, d_offset if offset.ndim else d_offset.sum()


def _shift(value: Tensor, empty: bool) -> Tensor:
    """lse; +inf for a row that has no entries, so that its weights become 0."""
    return value.nan_to_num(math.nan, math.inf, math.inf) if empty else value


def _pair_logits(scaled: Tensor, columns: Tensor, offset: Tensor, tile: Tile) -> Tensor:
    """offset_i + scale·s_ij of a band."""
    band = slice(tile.top, tile.bottom)
    shift = offset[band, None] if offset.ndim else offset
    return torch.addmm(shift.to(scaled.dtype), scaled[band], columns.T)
