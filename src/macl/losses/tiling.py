"""An n×m matrix that is never whole: its tiles, and which of its entries do not count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

TILE = 1024
"""Side of a tile: large enough for full-speed matrix products, small enough for caches."""

KEEP = 1 << 22
"""Up to this many similarities the exponentials are kept for the backward pass; more of them when
rows are longer than 128, as computing one again takes D multiplications."""


class Tile(NamedTuple):
    """Rows `top:bottom` against columns `left:right`."""

    top: int
    bottom: int
    left: int
    right: int

    def diagonal(self, tile: Tensor, offset: int) -> tuple[Tensor, slice, slice] | None:
        """The pairs (i, i + offset) inside `tile`, as a view, with their rows and columns."""
        inside = self.top + offset - self.left
        if not -tile.shape[0] < inside < tile.shape[1]:
            return None
        entries = tile.diagonal(inside)
        top = self.top + max(0, -inside)
        rows = slice(top, top + len(entries))
        return entries, rows, slice(rows.start + offset, rows.stop + offset)


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
        for offset in self.diagonals:
            if (found := where.diagonal(tile, offset)) is not None:
                found[0].fill_(fill)
        if self.row_groups is not None and self.column_groups is not None:
            rows = self.row_groups[where.top : where.bottom, None]
            tile.masked_fill_(rows == self.column_groups[where.left : where.right], fill)

    def transposed(self) -> Exclusions:
        """The same pairs seen from the columns."""
        return Exclusions(tuple(-d for d in self.diagonals), self.column_groups, self.row_groups)


def tiles(n: int, m: int, mirror: bool) -> list[Tile]:
    """All tiles, or with `mirror` those on and above the diagonal."""
    return [
        Tile(top, min(top + TILE, n), left, min(left + TILE, m))
        for top in range(0, n, TILE)
        for left in range(top if mirror else 0, m, TILE)
    ]


def bands(n: int, m: int) -> list[Tile]:
    """Whole rows, as many at a time as `KEEP` allows."""
    height = max(1, KEEP // max(m, 1))
    return [Tile(top, min(top + height, n), 0, m) for top in range(0, n, height)]


def scratch(like: Tensor, parts: list[Tile]) -> Tensor:
    """Room for the largest tile, used by all of them in turn."""
    return like.new_empty(max((t.bottom - t.top) * (t.right - t.left) for t in parts))
