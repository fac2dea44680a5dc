"""The one place where N×K similarities meet: a logsumexp over negatives, streamed in tiles.

Every loss of the family is a function of the margin (reference: Huang et al., ICML 2023)

    x_i = logsumexp_j(r_i·c_j / τ) − s_i⁺ / τ

whose second term is a cheap dot product. The first term is here, as one `autograd.Function` that
computes similarities tile by tile, keeps one number per row, and recomputes the tiles backward:
memory is O((n + m)·D) instead of O(n·m).

How it is fast and exact:
- rows and columns have unit length, so |r·c|/τ is bounded and the exponentials need no maximum to
  be subtracted; where τ is so small that this bound would leave the range of the floating type,
  a slower path subtracts each row's maximum;
- log2(e)/τ is folded into the matrix product and the tile is exponentiated in place with exp2;
- with `mirror` (columns = rows) the similarity matrix is symmetric: each tile is computed once and
  serves its rows and its columns;
- where the positive is an entry of the matrix, its gradient rides in the same matrix products;
- the exponentials of small batches are kept instead of recomputed, so that these are never slower
  than plain torch;
- tiles come in a fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from macl.losses import tiling
from macl.losses.tiling import Exclusions, Tile

_LOG2E = math.log2(math.e)
_LARGEST_EXPONENT = {torch.float32: 60.0, torch.float64: 700.0}
# In float32, normal from 2^-126 to 2^127: sums of 2^20 terms reach 2^80 at most, so that a gradient
# of 2^-46 divided by one is still a normal number; single terms lie above 2^-60.


def logsumexp(rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions) -> Tensor:
    """log Σ_j exp(r_i·c_j / τ) over the columns that are not excluded.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors.
        temperature: scalar τ > 0; receives its gradient when it asks for one.
        exclude: pairs that do not count.

    Returns:
        (n,); −inf for a row that has no negative left.
    """
    if range_is_safe(rows, temperature):
        return _Streamed.apply(rows, columns, temperature, exclude, (), False, False)[0]
    return _ByRow.apply(rows, columns, temperature, exclude)


def logsumexp_both_ways(
    rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions
) -> tuple[Tensor, Tensor]:
    """`logsumexp` for the rows, (n,), and for the columns, (m,), from the same tiles."""
    if range_is_safe(rows, temperature):
        return _Streamed.apply(rows, columns, temperature, exclude, (), True, False)
    return (
        _ByRow.apply(rows, columns, temperature, exclude),
        _ByRow.apply(columns, rows, temperature, exclude.transposed()),
    )


def logsumexp_mirror(rows: Tensor, temperature: Tensor, exclude: Exclusions) -> Tensor:
    """`logsumexp` of rows against themselves: half the tiles, each used for both of its sides."""
    if range_is_safe(rows, temperature):
        return _Streamed.apply(rows, rows, temperature, exclude, (), True, True)[0]
    return _ByRow.apply(rows, rows, temperature, exclude)


def margin(
    rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions, positive: int
) -> Tensor:
    """`logsumexp` less the positive r_i·c_{i+positive}/τ, an excluded entry of the matrix.

    This and the two margins below need `range_is_safe`.
    """
    return _Streamed.apply(rows, columns, temperature, exclude, (positive,), False, False)[0]


def margin_both_ways(
    rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions
) -> tuple[Tensor, Tensor]:
    """`logsumexp_both_ways` less the positives on the main diagonal of the (n, n) matrix."""
    return _Streamed.apply(rows, columns, temperature, exclude, (0,), True, False)


def margin_mirror(rows: Tensor, temperature: Tensor, exclude: Exclusions) -> Tensor:
    """`logsumexp_mirror` less the positives: rows i and i + n of the (2n, D) rows are a pair."""
    n = len(rows) // 2
    return _Streamed.apply(rows, rows, temperature, exclude, (n, -n), True, True)[0]


def range_is_safe(rows: Tensor, temperature: Tensor) -> bool:
    """Whether exp(±1/τ), and sums of it, stay inside the floating type's range."""
    return _LOG2E / float(temperature.detach()) <= _LARGEST_EXPONENT[rows.dtype]


class _Streamed(torch.autograd.Function):
    """Tiles in any order, no maximum subtracted. Returns sums over rows and, if asked, columns."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        temperature: Tensor,
        exclude: Exclusions,
        positives: tuple[int, ...],
        both_ways: bool,
        mirror: bool,
    ) -> tuple[Tensor, Tensor | None]:
        n, m = len(rows), len(columns)
        tiles = tiling.tiles(n, m, mirror)
        scale = _LOG2E / float(temperature)
        keep = n * m <= tiling.KEEP * max(1.0, rows.shape[1] / 128) and any(ctx.needs_input_grad)
        scratch = None if keep else tiling.scratch(rows, tiles)
        kept: dict[Tile, Tensor] = {}
        positive = rows.new_empty(n if positives else 0)  # s⁺/τ
        alone = keep and len(tiles) == 1  # a small batch, where every operation counts
        if not alone:
            row_sums = rows.new_zeros(n)
            column_sums = row_sums if mirror else rows.new_zeros(m if both_ways else 0)
        for tile in tiles:
            e = _exponentials(rows, columns, scale, tile, scratch)
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
                column_sums = e.sum(0) if both_ways and not mirror else row_sums
                break
            row_sums[tile.top : tile.bottom] += e.sum(1)
            if both_ways and not (mirror and tile.top == tile.left):
                column_sums[tile.left : tile.right] += e.sum(0)
        ctx.save_for_backward(rows, columns, temperature, row_sums, column_sums)
        ctx.exclude, ctx.both_ways, ctx.mirror = exclude, both_ways, mirror
        ctx.tiles, ctx.kept, ctx.positives = tiles, kept, positives
        sums = (row_sums, column_sums) if both_ways and not mirror else (row_sums,)
        out = [part.log() for part in sums]
        if positives:
            for part in out:
                part -= positive
        return out[0], out[1] if len(out) == 2 else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_columns: Tensor | None) -> tuple[Tensor | None, ...]:
        """With weights u = g/(τΣ): dL/dr_i = Σ_j E_ij (u_i + v_j) c_j, and so for the columns.

        Where positives are subtracted their entry, of weight −g/τ = −uΣ, takes E's place.
        """
        _refuse_double_backward()
        rows, columns, temperature, row_sums, column_sums = ctx.saved_tensors
        exclude, both_ways, mirror = ctx.exclude, ctx.both_ways, ctx.mirror
        kept: dict[Tile, Tensor] = ctx.kept
        wants_columns = ctx.needs_input_grad[1] and not mirror
        tau = float(temperature)
        u = _weights(grad, row_sums, tau)
        v = None
        if mirror:
            v = u
        elif both_ways:
            if grad_columns is None:
                grad_columns = torch.zeros_like(column_sums)
            v = _weights(grad_columns, column_sums, tau)
        # Without v, the weight of a row goes to the thin side: E itself is not touched.
        source = u[:, None] * rows if v is None and wants_columns else rows
        if len(kept) == 1:
            ((tile, e),) = kept.items()
            e = e if v is None else e * (u[:, None] + v)
            _put_positives(ctx, e, tile, u, v)
            d_columns = e.T @ source if wants_columns else None
            return _finished(ctx, e @ columns, d_columns, None if v is not None else u)
        d_rows = torch.zeros_like(rows)
        d_columns = torch.zeros_like(columns) if wants_columns else None
        scratch = None if kept else tiling.scratch(rows, ctx.tiles)
        spare = None if v is None else tiling.scratch(rows, ctx.tiles)
        for tile in ctx.tiles:
            top, bottom, left, right = tile
            if kept:
                e = kept[tile]
            else:
                e = _exponentials(rows, columns, _LOG2E / tau, tile, scratch)
                exclude.apply(e, tile, 0.0)
            if v is not None and spare is not None:
                both = spare[: e.numel()].view(e.shape)
                torch.add(u[top:bottom, None], v[left:right], out=both)
                # a kept tile may be needed again (retain_graph): the sum is overwritten instead
                e = both.mul_(e)
            _put_positives(ctx, e, tile, u, v)
            d_rows[top:bottom].addmm_(e, columns[left:right])
            if mirror and top != left:
                d_rows[left:right].addmm_(e.T, rows[top:bottom])
            elif d_columns is not None:
                d_columns[left:right].addmm_(e.T, source[top:bottom])
        return _finished(ctx, d_rows, d_columns, None if v is not None else u)


def _finished(
    ctx: Any, d_rows: Tensor, d_columns: Tensor | None, row_weights: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of `_Streamed`: rows weighed if they are not yet, and that of τ if asked."""
    rows, _, temperature, _, _ = ctx.saved_tensors
    if row_weights is not None:
        d_rows *= row_weights[:, None]
    d_temperature = None
    if ctx.needs_input_grad[2]:
        # ⟨r, dL/dr⟩ = Σ g·P̂·s/τ, counting a pair once, or once from either end in `mirror`.
        d_temperature = -(rows * d_rows).sum() / ((2.0 if ctx.mirror else 1.0) * temperature)
    return d_rows, d_columns, d_temperature, None, None, None, None


def _put_positives(ctx: Any, e: Tensor, tile: Tile, u: Tensor, v: Tensor | None) -> None:
    """Write the positives' weights over their entries of E, which are excluded from it."""
    *_, row_sums, column_sums = ctx.saved_tensors
    for offset in ctx.positives:
        if (found := tile.diagonal(e, offset)) is None:
            continue
        entries, i, j = found
        if v is None:  # the weight u of the row comes later
            torch.neg(row_sums[i], out=entries)
        else:
            torch.addcmul(u[i] * row_sums[i], v[j], column_sums[j], out=entries).neg_()


class _ByRow(torch.autograd.Function):
    """All columns of a few rows at a time, each row's maximum subtracted: right for any τ."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions
    ) -> Tensor:
        out = rows.new_empty(len(rows))
        for tile in tiling.bands(len(rows), len(columns)):
            logits = _logits(rows, columns, temperature, tile, exclude)
            out[tile.top : tile.bottom] = logits.logsumexp(1)
        ctx.save_for_backward(rows, columns, temperature, out)
        ctx.exclude = exclude
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        rows, columns, temperature, out = ctx.saved_tensors
        d_rows, d_columns = torch.empty_like(rows), torch.zeros_like(columns)
        finite = out.masked_fill(out.isneginf(), math.inf)  # no negatives: all weights become 0
        for tile in tiling.bands(len(rows), len(columns)):
            band = slice(tile.top, tile.bottom)
            p = _logits(rows, columns, temperature, tile, ctx.exclude)
            p = p.sub_(finite[band, None]).exp_().mul_(grad[band, None])
            d_rows[band] = p @ columns
            d_columns.addmm_(p.T, rows[band])
        d_rows /= temperature
        d_columns /= temperature
        d_temperature = -(rows * d_rows).sum() / temperature if ctx.needs_input_grad[2] else None
        return d_rows, d_columns, d_temperature, None


def _logits(
    rows: Tensor, columns: Tensor, temperature: Tensor, tile: Tile, exclude: Exclusions
) -> Tensor:
    logits = (rows[tile.top : tile.bottom] / temperature.to(rows.dtype)) @ columns.T
    exclude.apply(logits, tile, -math.inf)
    return logits


def _exponentials(
    rows: Tensor, columns: Tensor, scale: float, tile: Tile, scratch: Tensor | None
) -> Tensor:
    """2^(scale · r·c), in `scratch` if there is one."""
    shape = (tile.bottom - tile.top, tile.right - tile.left)
    e = rows.new_empty(shape) if scratch is None else scratch[: shape[0] * shape[1]].view(shape)
    r, c = rows[tile.top : tile.bottom], columns[tile.left : tile.right]
    torch.addmm(e, r, c.T, beta=0, alpha=scale, out=e)  # beta = 0: what was in e does not count
    return e.exp2_()


def _weights(grad: Tensor, sums: Tensor, temperature: float) -> Tensor:
    """g/(τ·Σ); where there is no negative to sum over, g is 0 and so is this."""
    return grad / (sums * temperature).clamp_(min=torch.finfo(sums.dtype).tiny)


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the streamed contrastive kernel has no second derivative (create_graph=True). "
            "Compute similarities yourself and call criterion.from_similarities(pos, neg), "
            "which is plain torch and can be differentiated twice."
        )
