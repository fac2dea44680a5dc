"""Which pairs of rows and columns count: diagonals, groups, labels, lists, a guide.

Everything is evaluated inside a tile of the similarity matrix, so no N×K mask is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Tile(NamedTuple):
    """Rows `top:bottom` against columns `left:right` of an n×m matrix."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def rows(self) -> slice:
        """Its rows."""
        return slice(self.top, self.bottom)

    @property
    def columns(self) -> slice:
        """Its columns."""
        return slice(self.left, self.right)

    def diagonal(self, tile: Tensor, offset: int) -> tuple[Tensor, slice] | None:
        """The entries (i, i + offset) inside `tile`, as a view, with their rows i."""
        inside = self.top + offset - self.left
        if not -tile.shape[0] < inside < tile.shape[1]:
            return None
        entries = tile.diagonal(inside)
        top = self.top + max(0, -inside)
        return entries, slice(top, top + entries.shape[0])


class Relation(NamedTuple):
    """Labels of rows and columns; two agree if they are equal, or share a label.

    (n,) and (m,) integers, or (n, L) and (m, L) multi-hot.
    """

    rows: Tensor
    columns: Tensor

    def agree(self, tile: Tile) -> Tensor:
        """Bool mask of a tile: whether row and column agree."""
        rows, columns = self.rows[tile.rows], self.columns[tile.columns]
        if rows.ndim == 1:
            return rows[:, None] == columns
        return (rows.float() @ columns.float().T) > 0.5


class Listed(NamedTuple):
    """Pairs (row, column) by their positions, each with its weight."""

    rows: Tensor
    columns: Tensor
    weights: Tensor

    def fill(self, entries: Tensor, tile: Tile, value: float) -> None:
        """Write `value` at the listed pairs of a tile, in place."""
        i, j = self.rows - tile.top, self.columns - tile.left
        inside = (i >= 0) & (i < entries.shape[0]) & (j >= 0) & (j < entries.shape[1])
        # A pair outside of the tile writes to (0, 0), which is set last: no size is read back.
        i, j = i.where(inside, 0), j.where(inside, 0)
        corner = entries[0, 0].masked_fill((inside & (i + j == 0)).any(), value)
        entries[i, j] = value
        entries[0, 0] = corner


class Guide(NamedTuple):
    """Unit rows of a fixed guide model and the similarity above which a pair is excluded."""

    rows: Tensor
    columns: Tensor
    threshold: Tensor
    """(n,) for each row."""

    def above(self, tile: Tile) -> Tensor:
        """Bool mask of a tile: the guide finds the pair too similar to be a negative."""
        similarity = self.rows[tile.rows] @ self.columns[tile.columns].T
        return similarity > self.threshold[tile.rows, None]


class Exclusions(NamedTuple):
    """Which pairs (row, column) do not count.

    `diagonals`: pair (i, i + d) for each d: the row itself, its positive.
    `groups`: pairs that agree: duplicates.
    `classes`: pairs that agree are positives. With `only_classes` it is the other way round, and
    nothing but these and the diagonals is looked at: pairs that do not agree are excluded.
    `listed`: pairs by position, positives; `guide`: what the guide model finds too similar.
    """

    diagonals: tuple[int, ...] = ()
    groups: Relation | None = None
    classes: Relation | None = None
    only_classes: bool = False
    listed: Listed | None = None
    guide: Guide | None = None

    def apply(self, entries: Tensor, tile: Tile, fill: float) -> None:
        """Overwrite the excluded entries of a tile with `fill`, in place."""
        n = entries.shape[0] // 2
        whole = entries.shape == (2 * n, 2 * n) and tile.top == tile.left
        if whole and self.diagonals == (0, n, -n):  # both views: one operation instead of three
            entries.view(2, n, 2, n).diagonal(0, 1, 3).fill_(fill)
        else:
            for offset in self.diagonals:
                if (diagonal := tile.diagonal(entries, offset)) is not None:
                    diagonal[0].fill_(fill)
        if self.classes is not None:
            agree = self.classes.agree(tile)
            entries.masked_fill_(~agree if self.only_classes else agree, fill)
            if self.only_classes:
                return
        if self.groups is not None:
            entries.masked_fill_(self.groups.agree(tile), fill)
        if self.listed is not None:
            self.listed.fill(entries, tile, fill)
        if self.guide is not None:
            entries.masked_fill_(self.guide.above(tile), fill)

    @property
    def by_position(self) -> bool:
        """Whether diagonals alone decide, so that the number of pairs is known."""
        return not (self.groups or self.classes or self.listed or self.guide)

    @property
    def symmetric(self) -> bool:
        """Whether the pairs seen from the columns follow the same rule."""
        return self.guide is None

    @property
    def relation(self) -> Relation | None:
        """The only relation, where there are not two."""
        return self.groups or self.classes

    @property
    def is_simple(self) -> bool:
        """Whether diagonals and one relation of integers decide, as the Triton kernels need."""
        one = self.groups is None or self.classes is None
        integers = self.relation is None or self.relation.rows.ndim == 1
        return one and integers and self.listed is None and self.guide is None

    def may_empty(self, columns: int) -> bool:
        """Whether a row may have no pair left among so many columns."""
        return not self.by_position or columns <= len(self.diagonals)

    def transposed(self) -> Exclusions:
        """The same pairs seen from the columns; not with a guide."""
        parts = {"groups": self.groups, "classes": self.classes, "listed": self.listed}
        swapped: dict[str, Any] = {
            name: part._replace(rows=part.columns, columns=part.rows)
            for name, part in parts.items()
            if part is not None
        }
        return self._replace(diagonals=tuple(-d for d in self.diagonals), **swapped)

    def tensors(self) -> list[Tensor | None]:
        """Its tensors in a fixed order, for operators that take nothing else."""
        tensors: list[Tensor | None] = []
        for name, kind in _PARTS.items():
            tensors += getattr(self, name) or [None] * len(kind._fields)
        return tensors

    @classmethod
    def rebuild(
        cls, diagonals: Sequence[int], only_classes: bool, tensors: Sequence[Tensor | None]
    ) -> Exclusions:
        """From `diagonals`, `only_classes` and `tensors()`."""
        rest, parts = iter(tensors), {}
        for name, kind in _PARTS.items():
            own = [next(rest) for _ in kind._fields]
            parts[name] = None if own[0] is None else kind(*own)
        return cls(tuple(diagonals), only_classes=only_classes, **parts)

    def column_tensors(self) -> list[Tensor]:
        """What belongs to the columns and travels with them from rank to rank."""
        parts = (self.groups, self.classes, self.guide)
        return [part.columns for part in parts if part is not None]

    def for_block(self, columns: Sequence[Tensor], own: bool) -> Exclusions:
        """The same rule against another block of columns; positions hold for the own one alone."""
        rest = iter(columns)
        parts = {"groups": self.groups, "classes": self.classes, "guide": self.guide}
        changed: dict[str, Any] = {
            name: part._replace(columns=next(rest)) for name, part in parts.items() if part
        }
        if not own:
            changed |= {"diagonals": (), "listed": None}
        return self._replace(**changed)


_PARTS: dict[str, Any] = {"groups": Relation, "classes": Relation, "listed": Listed, "guide": Guide}
