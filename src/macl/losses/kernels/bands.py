"""What the loops over bands of whole rows have in common, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macl.losses.kernels.interface import LogitMap
from macl.losses.kernels.tiles import Tile


def scaled(rows: Tensor, temperature: Tensor | None) -> Tensor:
    """r/τ; the rows themselves where a map makes the logits."""
    return rows if temperature is None else rows / column(temperature.to(rows.dtype))


def logits(
    scaled: Tensor,
    columns: Tensor,
    tile: Tile,
    map: LogitMap | None,
    slopes: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """l of a band, and dl/ds where a map makes it vary."""
    s = scaled[tile.top : tile.bottom] @ columns.T
    if map is None:
        return s, None
    return map.value_and_derivative(s) if slopes else (map.value(s), None)


def on_diagonals(logits: Tensor, tile: Tile, offsets: tuple[int, ...]) -> Tensor:
    """(rows of the band,) the logits of pairs (i, i + offset), in the order of i."""
    found = [part for offset in offsets if (part := tile.diagonal(logits, offset)) is not None]
    return torch.cat([entries for entries, i, _ in sorted(found, key=lambda part: part[1].start)])


def put(
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


def peak(logits: Tensor, empty: bool) -> Tensor:
    """(n,) the largest logit of each row; 0 for a row without any: −inf less −inf would be NaN."""
    largest = logits.amax(1)
    return largest.nan_to_num_(math.nan, math.inf, 0.0) if empty else largest


def column(value: Tensor) -> Tensor:
    """A number, or one per row as (n, 1)."""
    return value[:, None] if value.ndim else value


class ByRow:
    """What the bands leave for each row, in one tensor that is reserved at the first of them.

    A part that stayed where it was made would lie in the heap where the next band could have been,
    and memory would grow with every band.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._whole: Tensor | None = None

    def put(self, tile: Tile, part: Tensor) -> None:
        """Keep the part of a band; without a copy where there is one band."""
        if len(part) == self._rows:
            self._whole = part
            return
        if self._whole is None:
            self._whole = part.new_empty((self._rows, *part.shape[1:]))
        self._whole[tile.top : tile.bottom] = part

    @property
    def whole(self) -> Tensor:
        """The parts of all bands."""
        assert self._whole is not None
        return self._whole
