"""The streamed operator on the CPU: symmetric tiles, exponentials without a maximum.

For one scalar τ, and for a map g that is bounded on [−1, 1]:
- rows and columns have unit length, so |r·c|/τ is bounded and the exponentials need no maximum to
  be subtracted, as long as exp(1/τ) and sums of it stay in the floating type's range (`bounded`);
- log2(e)/τ is folded into the matrix product and the tile is exponentiated in place with exp2; a
  map makes e^g, and e^g·g' for the gradient, itself;
- in the "mirror" direction (columns = rows) the similarity matrix is symmetric: each tile is
  computed once and serves its rows and its columns;
- where the positive is an entry of the matrix, its gradient is part of the same matrix products;
- the exponentials of small batches are kept instead of recomputed, so that these are never slower
  than plain torch;
- where only the rows need a gradient (a bank of keys), the forward pass sums e·c beside e: the
  backward pass then multiplies by a number per row and does not read the columns again;
- tiles come in a fixed order, so results repeat bit for bit.

Everything else (smaller τ, one τ per row, other maps, pair sums) runs in bands, see `torch_tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from macl.losses.kernels import tiles, torch_tiles
from macl.losses.kernels.interface import Direction, Exclusions, LogitMap, wide
from macl.losses.kernels.tiles import Tile
from macl.losses.kernels.torch_tiles import pair_sum, pair_sum_grad

__all__ = ["lse", "lse_grad", "lse_grads", "pair_sum", "pair_sum_grad"]

LOG2E = math.log2(math.e)
_LARGEST_EXPONENT = {torch.float32: 60.0, torch.float64: 700.0}
# In float32, normal from 2^-126 to 2^127: sums of 2^20 terms reach 2^80 at most, so that a gradient
# of 2^-46 divided by one is still a normal number; single terms lie above 2^-60.


def bounded(rows: Tensor, temperature: Tensor | None, map: LogitMap | None = None) -> bool:
    """Whether one τ, or a map, keeps exp(±l) and sums of it in the type's range."""
    if map is not None:
        return _fits(map.largest(), rows.dtype)
    if temperature is None or temperature.ndim > 0:
        return False
    return in_range(float(temperature.detach()), rows.dtype)


def in_range(tau: float, dtype: torch.dtype) -> bool:
    """Whether exp(±1/τ), and sums of it, are numbers of this type; False for NaN."""
    return _fits(1 / tau, dtype)


def _fits(logit: float, dtype: torch.dtype) -> bool:
    return LOG2E * logit <= _LARGEST_EXPONENT.get(dtype, 60.0)


def lse(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    map: LogitMap | None = None,
) -> Tensor:
    """(n,) log Σ_j exp(l_ij), see `interface`."""
    return lse_all(rows, columns, temperature, exclude, "rows", map)[0]


def lse_all(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    exclude: Exclusions,
    direction: Direction,
    map: LogitMap | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`lse` of the rows and, for the direction "both", (m,) that of the columns."""
    if bounded(rows, temperature, map):
        rows, columns = wide(rows), wide(columns)
        sums = stream(rows, columns, _tau(temperature), exclude, (), direction, map=map)
        by_column = sums.by_column.log() if direction == "both" else None
        return sums.by_row.log(), by_column
    out = torch_tiles.lse(rows, columns, temperature, exclude, map)
    if direction != "both":
        return out, None
    return out, torch_tiles.lse(columns, rows, temperature, exclude.transposed(), map)


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
    mirror: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`lse_grad` and, if asked, (m, D) the columns' gradient; `mirror` takes half the tiles."""
    if not bounded(rows, temperature, map):
        return torch_tiles.lse_grads(
            rows, columns, temperature, exclude,
            row_weight, row_lse, column_weight, column_lse, map, columns_too,
        )  # fmt: skip
    rows, columns, tau = wide(rows), wide(columns), _tau(temperature)
    row_sums, column_sums = row_lse.exp(), row_lse.new_empty(0)
    u, v = weights(row_weight, row_sums, tau), None
    if column_weight is not None and column_lse is not None:
        column_sums = column_lse.exp()
        v = weights(column_weight, column_sums, tau)
    sums = Sums(row_sums, column_sums, tiles.tiles(len(rows), len(columns), mirror), {}, None)
    return pull(rows, columns, tau, exclude, (), sums, u, v, columns_too, mirror, map)


def _tau(temperature: Tensor | None) -> float:
    """τ; 1 where a map makes the logits."""
    return 1.0 if temperature is None else float(temperature)


class Sums(NamedTuple):
    """What a pass over the tiles leaves behind."""

    by_row: Tensor
    """(n,) Σ_j exp(l_ij)."""
    by_column: Tensor
    """(m,), the rows' own tensor in the mirror direction, or empty where it was not asked for."""
    tiles: list[Tile]
    kept: dict[Tile, Tensor]
    """Exponentials of small batches."""
    positive: Tensor | None
    """(n,) s⁺/τ of the positives on diagonals."""
    pulls: Tensor | None = None
    """(n, D) Σ_j exp(l_ij)·c_j, where asked for."""


def stream(
    rows: Tensor,
    columns: Tensor,
    tau: float,
    exclude: Exclusions,
    positives: tuple[int, ...],
    direction: Direction,
    keep: bool = False,
    pulls: bool = False,
    map: LogitMap | None = None,
) -> Sums:
    """Sums of exponentials over all tiles.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors.
        tau: τ.
        exclude: pairs that do not count.
        positives: offsets of the diagonals whose logits are returned.
        direction: which sums are wanted.
        keep: keep the exponentials if there are few of them.
        pulls: also sum exp(l_ij)·c_j, for a gradient to the rows alone.
        map: g, in place of τ; without `positives`, `keep` and `pulls`.
    """
    n, m = len(rows), len(columns)
    both, mirror = direction == "both", direction == "mirror"
    parts = tiles.tiles(n, m, mirror)
    keep = keep and n * m <= tiles.KEEP * max(1.0, rows.shape[1] / 128)
    scratch = None if keep else tiles.scratch(rows, parts)
    kept: dict[Tile, Tensor] = {}
    positive = rows.new_empty(n) if positives else None
    pulled = torch.zeros_like(rows) if pulls else None
    alone = keep and len(parts) == 1  # a small batch, where every operation counts
    if not alone:
        row_sums = rows.new_zeros(n)
        column_sums = row_sums if mirror else rows.new_zeros(m if both else 0)
    for tile in parts:
        e = _tile(rows, columns, tau, tile, scratch, map.exponential_ if map else None)
        if positive is not None:
            for offset in positives:
                if (found := tile.diagonal(e, offset)) is not None:
                    entries, i, j = found
                    torch.log(entries, out=positive[i])
                    if mirror and tile.top != tile.left:
                        positive[j] = positive[i]
        exclude.apply(e, tile, 0.0)
        if keep:
            kept[tile] = e
        if alone:
            row_sums = e.sum(1)
            column_sums = e.sum(0) if both else row_sums
            break
        row_sums[tile.top : tile.bottom] += e.sum(1)
        if both or (mirror and tile.top != tile.left):
            column_sums[tile.left : tile.right] += e.sum(0)
        if pulled is not None:
            pulled[tile.top : tile.bottom].addmm_(e, columns[tile.left : tile.right])
    return Sums(row_sums, column_sums, parts, kept, positive, pulled)


def pull(
    rows: Tensor,
    columns: Tensor,
    tau: float,
    exclude: Exclusions,
    positives: tuple[int, ...],
    sums: Sums,
    u: Tensor,
    v: Tensor | None,
    wants_columns: bool,
    mirror: bool,
    map: LogitMap | None = None,
) -> tuple[Tensor, Tensor | None]:
    """With weights u = g/(τΣ): dL/dr_i = Σ_j E_ij (u_i + v_j) c_j, and so for the columns.

    E is e^{s/τ}, and e^{g(s)}·g'(s) with a map (τ is 1 then).
    Where positives are subtracted their entry, of weight −g/τ = −uΣ, takes E's place.
    """
    kept = sums.kept
    # Without v, the weight of a row goes to the thin side: E itself is not touched.
    source = u[:, None] * rows if v is None and wants_columns else rows
    if len(kept) == 1:
        ((tile, e),) = kept.items()
        e = e if v is None else e * (u[:, None] + v)
        _put_positives(positives, sums, e, tile, u, v)
        d_columns = e.T @ source if wants_columns else None
        d_rows = e @ columns
    else:
        d_rows = torch.zeros_like(rows)
        d_columns = torch.zeros_like(columns) if wants_columns else None
        scratch = None if kept else tiles.scratch(rows, sums.tiles)
        spare = None if v is None else tiles.scratch(rows, sums.tiles)
        for tile in sums.tiles:
            top, bottom, left, right = tile
            if kept:
                e = kept[tile]
            else:
                e = _tile(rows, columns, tau, tile, scratch, map.weighted_ if map else None)
                exclude.apply(e, tile, 0.0)
            if v is not None and spare is not None:
                both = spare[: e.numel()].view(e.shape)
                torch.add(u[top:bottom, None], v[left:right], out=both)
                # a kept tile may be needed again (retain_graph): the sum is overwritten instead
                e = both.mul_(e)
            _put_positives(positives, sums, e, tile, u, v)
            d_rows[top:bottom].addmm_(e, columns[left:right])
            if mirror and top != left:
                d_rows[left:right].addmm_(e.T, rows[top:bottom])
            elif d_columns is not None:
                d_columns[left:right].addmm_(e.T, source[top:bottom])
    if v is None:
        d_rows *= u[:, None]
    return d_rows, d_columns


def _put_positives(
    positives: tuple[int, ...], sums: Sums, e: Tensor, tile: Tile, u: Tensor, v: Tensor | None
) -> None:
    """Write the positives' weights over their entries of E, which are excluded from it."""
    for offset in positives:
        if (found := tile.diagonal(e, offset)) is None:
            continue
        entries, i, j = found
        if v is None:  # the weight u of the row comes later
            torch.neg(sums.by_row[i], out=entries)
        else:
            torch.addcmul(u[i] * sums.by_row[i], v[j], sums.by_column[j], out=entries).neg_()


def _tile(
    rows: Tensor,
    columns: Tensor,
    tau: float,
    tile: Tile,
    scratch: Tensor | None,
    function: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """e^{r·c/τ}, or a function of r·c that may overwrite it; in `scratch` if there is one."""
    shape = (tile.bottom - tile.top, tile.right - tile.left)
    e = rows.new_empty(shape) if scratch is None else scratch[: shape[0] * shape[1]].view(shape)
    r, c = rows[tile.top : tile.bottom], columns[tile.left : tile.right]
    scale = LOG2E / tau if function is None else 1.0
    torch.addmm(e, r, c.T, beta=0, alpha=scale, out=e)  # beta = 0: what was in e does not count
    return e.exp2_() if function is None else function(e)


def weights(grad: Tensor, sums: Tensor, temperature: float) -> Tensor:
    """g/(τ·Σ); where there is no negative to sum over, g is 0 and so is this."""
    return grad / (sums * temperature).clamp_(min=torch.finfo(sums.dtype).tiny)
