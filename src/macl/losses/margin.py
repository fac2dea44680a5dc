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
- log2(e)/τ is folded into the rows once and the tile is exponentiated in place with exp2;
- with `mirror` (columns = rows) the similarity matrix is symmetric: each tile is computed once and
  serves its rows and its columns;
- few tiles are kept instead of recomputed: small batches are never slower than plain torch;
- on the CPU each core works on its own tiles with its own accumulators. Tiles are dealt out in a
  fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE = 512
"""Side of a tile: large enough for full-speed matrix products, small enough for caches."""

KEEP = 1 << 22
"""Up to this many similarities the exponentials are kept for the backward pass."""

_LOG2E = math.log2(math.e)
_LARGEST_EXPONENT = {torch.float32: 80.0, torch.float64: 800.0}
# 2^80 summed over 2^40 columns stays below float32's 2^127, and 2^-80 stays above its 2^-126.


class Tile(NamedTuple):
    """Rows `top:bottom` against columns `left:right`."""

    top: int
    bottom: int
    left: int
    right: int


@dataclass(frozen=True)
class Exclusions:
    """Which pairs (row, column) are no negatives.

    `diagonals`: pair (i, i + d) is excluded for each d: the row itself, its positive.
    `row_groups`, `column_groups`: (n,), (m,) integers; pairs of equal groups are excluded:
    duplicates, known classes.
    """

    diagonals: tuple[int, ...] = ()
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None

    def apply(self, tile: Tensor, where: Tile, fill: float) -> None:
        """Overwrite the excluded entries of `tile` with `fill`, in place."""
        for diagonal in self.diagonals:
            offset = where.top + diagonal - where.left
            if -tile.shape[0] < offset < tile.shape[1]:
                tile.diagonal(offset).fill_(fill)
        if self.row_groups is not None and self.column_groups is not None:
            rows = self.row_groups[where.top : where.bottom, None]
            tile.masked_fill_(rows == self.column_groups[where.left : where.right], fill)

    def transposed(self) -> Exclusions:
        """The same pairs seen from the columns."""
        return Exclusions(tuple(-d for d in self.diagonals), self.column_groups, self.row_groups)


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
    if _range_is_safe(rows, temperature):
        return _Streamed.apply(rows, columns, temperature, exclude, False, False)[0]
    return _ByRow.apply(rows, columns, temperature, exclude)


def logsumexp_both_ways(
    rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions
) -> tuple[Tensor, Tensor]:
    """`logsumexp` for the rows, (n,), and for the columns, (m,), from the same tiles."""
    if _range_is_safe(rows, temperature):
        return _Streamed.apply(rows, columns, temperature, exclude, True, False)
    return (
        _ByRow.apply(rows, columns, temperature, exclude),
        _ByRow.apply(columns, rows, temperature, exclude.transposed()),
    )


def logsumexp_mirror(rows: Tensor, temperature: Tensor, exclude: Exclusions) -> Tensor:
    """`logsumexp` of rows against themselves: half the tiles, each used for both of its sides."""
    if _range_is_safe(rows, temperature):
        return _Streamed.apply(rows, rows, temperature, exclude, True, True)[0]
    return _ByRow.apply(rows, rows, temperature, exclude)


def _range_is_safe(rows: Tensor, temperature: Tensor) -> bool:
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
        both_ways: bool,
        mirror: bool,
    ) -> tuple[Tensor, Tensor | None]:
        n, m = len(rows), len(columns)
        tiles = _tiles(n, m, mirror)
        scaled = rows * (_LOG2E / temperature.to(rows.dtype))
        keep = n * m <= KEEP and any(ctx.needs_input_grad)
        kept: dict[Tile, Tensor] = {}

        def work(mine: Sequence[Tile]) -> tuple[Tensor, Tensor]:
            by_row = rows.new_zeros(n)
            by_column = by_row if mirror else rows.new_zeros(m if both_ways else 0)
            scratch = _scratch(rows, mine, keep)
            for tile in mine:
                e = _exponentials(scaled, columns, tile, exclude, scratch)
                if keep:
                    kept[tile] = e
                by_row[tile.top : tile.bottom] += e.sum(1)
                if both_ways and not (mirror and tile.top == tile.left):
                    by_column[tile.left : tile.right] += e.sum(0)
            return by_row, by_column

        results = _share(work, tiles, rows)
        row_sums = _total([r for r, _ in results])
        column_sums = row_sums if mirror else _total([c for _, c in results])
        ctx.save_for_backward(rows, columns, temperature, row_sums, column_sums)
        ctx.exclude, ctx.both_ways, ctx.mirror = exclude, both_ways, mirror
        ctx.tiles, ctx.kept = tiles, kept
        ln2 = math.log(2)
        second = column_sums.log2().mul_(ln2) if both_ways and not mirror else None
        return row_sums.log2().mul_(ln2), second

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_columns: Tensor | None) -> tuple[Tensor | None, ...]:
        """With weights u = g/Σ: dL/dr_i = Σ_j E_ij (u_i + v_j) c_j / τ, and so for the columns."""
        _refuse_double_backward()
        rows, columns, temperature, row_sums, column_sums = ctx.saved_tensors
        n, m = len(rows), len(columns)
        exclude, both_ways, mirror = ctx.exclude, ctx.both_ways, ctx.mirror
        kept: dict[Tile, Tensor] = ctx.kept
        wants_columns = ctx.needs_input_grad[1] and not mirror
        # Gradients may carry any scale (fp16 loss scaling, tiny weights): take it out, and put it
        # back at the end, so that u stays a normal number.
        scale = grad.abs().amax() if n else grad.new_zeros(())
        if grad_columns is not None and m:
            scale = torch.maximum(scale, grad_columns.abs().amax())
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        u = _weights(grad / scale, row_sums)
        v = None
        if mirror:
            v = u
        elif both_ways:
            v = _weights(
                torch.zeros_like(column_sums) if grad_columns is None else grad_columns / scale,
                column_sums,
            )
        scaled = rows * (_LOG2E / temperature.to(rows.dtype))
        weighted = u[:, None] * rows if v is None and wants_columns else None

        def work(mine: Sequence[Tile]) -> tuple[Tensor, Tensor]:
            d_rows = torch.zeros_like(rows)
            d_columns = (
                d_rows
                if mirror
                else columns.new_zeros((m if wants_columns else 0, columns.shape[1]))
            )
            scratch = None if kept else _scratch(rows, mine, False)
            spare = rows.new_empty(_largest(mine)) if v is not None else None
            for tile in mine:
                top, bottom, left, right = tile
                e = kept[tile] if kept else _exponentials(scaled, columns, tile, exclude, scratch)
                if v is not None and spare is not None:
                    both = spare[: e.numel()].view(e.shape)
                    torch.add(u[top:bottom, None], v[None, left:right], out=both)
                    # a kept tile may be needed again (retain_graph), so it is not overwritten
                    e = torch.mul(e, both, out=both if kept else e)
                d_rows[top:bottom].addmm_(e, columns[left:right])
                if mirror:
                    if top != left:
                        d_rows[left:right].addmm_(e.T, rows[top:bottom])
                elif wants_columns:
                    source = rows if weighted is None else weighted
                    d_columns[left:right].addmm_(e.T, source[top:bottom])
            return d_rows, d_columns

        results = _share(work, ctx.tiles, rows)
        d_rows = _total([r for r, _ in results])
        if v is None:
            d_rows *= u[:, None]
        unit = scale / temperature.to(rows.dtype)
        d_rows *= unit
        d_columns = _total([c for _, c in results]) * unit if wants_columns else None
        d_temperature = None
        if ctx.needs_input_grad[2]:
            # ⟨r, dL/dr⟩ = Σ g·P̂·s/τ, counting a pair once, or once from either end in `mirror`.
            times = 2.0 if mirror else 1.0
            d_temperature = -(rows * d_rows).sum() / (times * temperature)
        return d_rows, d_columns, d_temperature, None, None, None


class _ByRow(torch.autograd.Function):
    """All columns of a few rows at a time, each row's maximum subtracted: right for any τ."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, temperature: Tensor, exclude: Exclusions
    ) -> Tensor:
        out = rows.new_empty(len(rows))
        for tile in _bands(len(rows), len(columns)):
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
        for tile in _bands(len(rows), len(columns)):
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
    scaled: Tensor, columns: Tensor, tile: Tile, exclude: Exclusions, scratch: Tensor | None
) -> Tensor:
    shape = (tile.bottom - tile.top, tile.right - tile.left)
    out = scaled.new_empty(shape) if scratch is None else scratch[: shape[0] * shape[1]].view(shape)
    e = torch.mm(scaled[tile.top : tile.bottom], columns[tile.left : tile.right].T, out=out)
    e.exp2_()
    exclude.apply(e, tile, 0.0)
    return e


def _weights(grad: Tensor, sums: Tensor) -> Tensor:
    return torch.where(sums > 0, grad / sums, torch.zeros_like(sums))


def _tiles(n: int, m: int, mirror: bool) -> list[Tile]:
    tiles = [
        Tile(top, min(top + TILE, n), left, min(left + TILE, m))
        for top in range(0, n, TILE)
        for left in range(top if mirror else 0, m, TILE)
    ]
    # Tiles on the diagonal cost half as much in `mirror`: dealt last, they even out the shares.
    return sorted(tiles, key=lambda t: t.top == t.left) if mirror else tiles


def _bands(n: int, m: int) -> list[Tile]:
    height = max(1, KEEP // max(m, 1))
    return [Tile(top, min(top + height, n), 0, m) for top in range(0, n, height)]


def _largest(tiles: Sequence[Tile]) -> int:
    return max(((t.bottom - t.top) * (t.right - t.left) for t in tiles), default=0)


def _scratch(like: Tensor, tiles: Sequence[Tile], keep: bool) -> Tensor | None:
    return None if keep else like.new_empty(_largest(tiles))


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total.add_(part)
    return total


def _share(
    work: Callable[[Sequence[Tile]], tuple[Tensor, Tensor]], tiles: list[Tile], like: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Deal the tiles out to one worker per core; on other devices one worker does all of them."""
    workers = torch.get_num_threads() if like.device.type == "cpu" else 1
    if workers == 1 or len(tiles) < 2 * workers:
        with torch.no_grad():
            return [work(tiles)]

    def quietly(mine: Sequence[Tile]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():  # grad mode belongs to a thread: this one has its own
            return work(mine)

    return list(_pool(workers).map(quietly, [tiles[w::workers] for w in range(workers)]))


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that use one core each inside torch: they beat all cores inside every operation."""
    pool = ThreadPoolExecutor(
        workers, thread_name_prefix="macl", initializer=torch.set_num_threads, initargs=(1,)
    )
    all_started = threading.Barrier(workers)
    list(pool.map(lambda _: all_started.wait(), range(workers)))
    torch.set_num_threads(workers)  # the threads' setting would become the default of later ones
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the streamed contrastive kernel has no second derivative (create_graph=True). "
            "Compute similarities yourself and call criterion.from_similarities(pos, neg), "
            "which is plain torch and can be differentiated twice."
        )
