"""The streamed operator in plain torch: bands of whole rows, each row's maximum subtracted.

Right for any temperature, map and device, meta tensors included: nothing reads a value back to the
host. The band's height follows from the device's memory (`tiles.band_entries`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macl.losses.kernels import tiles
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
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`lse`, and from the same tiles what is asked for of the following.

    (n,) the logits on the diagonals `positives`, and (n,) the `mean` logit Σ_j e^{l_ij − lse_i}·l_ij
    of each row, 0 for a row without pairs.
    """
    rows, columns = wide(rows), wide(columns)
    if len(columns) == 0:
        zeros = rows.new_zeros((len(rows),)) if mean else None
        return rows.new_full((len(rows),), -math.inf), None, zeros
    scaled = _scaled(rows, temperature)
    sums, found, means = [], [], []
    for tile in tiles.bands(len(rows), len(columns), rows.device):
        logits, _ = _logits(scaled, columns, tile, map)
        if positives:
            found.append(_on_diagonals(logits, tile, positives))
        exclude.apply(logits, tile, -math.inf)
        empty = exclude.may_empty(len(columns))
        peak = _peak(logits, empty)
        e = logits.sub_(peak[:, None]).exp_()
        total = e.sum(1)
        if mean:  # Σ_j e_j·log e_j/Σ_j e_j, and 0·log 0 = 0
            inside = torch.special.entr(e, out=e).sum(1)
            bound = total.clamp(min=torch.finfo(total.dtype).tiny) if empty else total
            means.append(torch.addcdiv(peak, inside, bound, value=-1))
        sums.append(total.log_().add_(peak))
    return _joined(sums), _joined(found) if found else None, _joined(means) if means else None


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
    scaled = _scaled(rows, temperature)
    row_shift = _shift(row_lse, exclude.may_empty(len(columns)))
    bands = tiles.bands(len(rows), len(columns), rows.device)
    # A symmetric matrix in one band: the columns' part is the rows' part, transposed.
    transposes = len(bands) == 1 and column_lse is row_lse
    column_shift = None
    if transposes:
        column_weight = None
    elif column_lse is not None:
        same, empty = column_lse is row_lse, exclude.may_empty(len(rows))
        column_shift = row_shift if same else _shift(column_lse, empty)
    row_shift = row_shift[:, None]
    d_rows: list[Tensor] = []
    d_columns: Tensor | None = None
    for tile in bands:
        band = slice(tile.top, tile.bottom)
        logits, slope = _logits(scaled, columns, tile, map, slopes=True)
        exclude.apply(logits, tile, -math.inf)
        shift = row_shift[band]
        if column_shift is None or column_weight is None:
            p = logits.sub_(shift).exp_().mul_(row_weight[band, None])
        else:
            p = (logits - shift).exp_().mul_(row_weight[band, None])
            p.addcmul_(logits.sub_(column_shift).exp_(), column_weight)
        if positive_weight is None:
            _put(p, tile, positives, row_weight, column_weight, -1.0)
        else:
            twice = None if column_weight is None else positive_weight
            _put(p, tile, positives, positive_weight, twice, 1.0)
        if slope is not None:
            p.mul_(slope)
        if transposes:
            p = p + p.T
        d_rows.append(p @ columns)
        if columns_too:
            part = p.T @ scaled[band]
            d_columns = part if d_columns is None else d_columns.add_(part)
    gradient = _joined(d_rows)
    if temperature is not None:
        gradient = gradient / _column(temperature.to(rows.dtype))
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
    value = FUNCTIONS[function].value
    sums = []
    for tile in tiles.bands(len(rows), len(columns), rows.device):
        values = value(_pair_logits(rows, columns, scale, offset, tile))
        exclude.apply(values, tile, 0.0)
        sums.append(values.sum(1))
    return _joined(sums)


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
    derivative = FUNCTIONS[function].derivative
    d_columns = torch.zeros_like(columns)
    pulls, offsets = [], []
    for tile in tiles.bands(len(rows), len(columns), rows.device):
        band = slice(tile.top, tile.bottom)
        slopes = derivative(_pair_logits(rows, columns, scale, offset, tile))
        exclude.apply(slopes, tile, 0.0)
        slopes.mul_(weight[band, None])
        pulls.append(slopes @ columns)
        d_columns.addmm_(slopes.T, rows[band])
        offsets.append(slopes.sum(1))
    pull, d_offset = _joined(pulls), _joined(offsets)
    scale = scale.to(rows.dtype)
    d_scale = (rows * pull).sum()
    return pull * scale, d_columns * scale, d_scale, d_offset if offset.ndim else d_offset.sum()


def _scaled(rows: Tensor, temperature: Tensor | None) -> Tensor:
    """r/τ; the rows themselves where a map makes the logits."""
    return rows if temperature is None else rows / _column(temperature.to(rows.dtype))


def _logits(
    scaled: Tensor,
    columns: Tensor,
    tile: Tile,
    map: LogitMap | None,
    slopes: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """l of a band, and dl/ds where a map makes it vary."""
    logits = scaled[tile.top : tile.bottom] @ columns.T
    slope = None
    if map is not None and slopes:
        logits, slope = map.value_and_derivative(logits)
    elif map is not None:
        logits = map.value(logits)
    return logits, slope


def _on_diagonals(logits: Tensor, tile: Tile, offsets: tuple[int, ...]) -> Tensor:
    """(rows of the band,) the logits of pairs (i, i + offset), in the order of i."""
    found = [part for offset in offsets if (part := tile.diagonal(logits, offset)) is not None]
    return torch.cat([entries for entries, i, _ in sorted(found, key=lambda part: part[1].start)])


def _put(
    p: Tensor,
    tile: Tile,
    offsets: tuple[int, ...],
    row_weight: Tensor,
    column_weight: Tensor | None,
    sign: float,
) -> None:
    """Write sign·weights over the entries (i, i + offset), which are excluded from p."""
    n = len(p) // 2
    if column_weight is None and offsets == (n, -n) and p.shape == (2 * n, 2 * n):
        # Both views in one band: entries (i, n + i) and (n + i, i) in one operation.
        entries = p.as_strided((2, n), (2 * n * n - n, 2 * n + 1), n)
        torch.mul(row_weight.reshape(2, n), sign, out=entries)
        return
    for offset in offsets:
        if (found := tile.diagonal(p, offset)) is None:
            continue
        entries, i, j = found
        if column_weight is None:
            torch.mul(row_weight[i], sign, out=entries)
        else:
            torch.add(row_weight[i], column_weight[j], out=entries).mul_(sign)


def _peak(logits: Tensor, empty: bool) -> Tensor:
    """(n,) the largest logit of each row; 0 for a row without any: −inf less −inf would be NaN."""
    peak = logits.amax(1)
    return peak.nan_to_num_(math.nan, math.inf, 0.0) if empty else peak


def _shift(value: Tensor, empty: bool) -> Tensor:
    """lse; +inf for a row that has no entries, so that its weights become 0."""
    return value.nan_to_num(math.nan, math.inf, math.inf) if empty else value


def _pair_logits(
    rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, tile: Tile
) -> Tensor:
    band = slice(tile.top, tile.bottom)
    x = rows[band] @ columns.T
    shift = offset[band, None] if offset.ndim else offset
    return x.mul_(scale.to(x.dtype)).add_(shift.to(x.dtype))


def _column(value: Tensor) -> Tensor:
    return value[:, None] if value.ndim else value


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
