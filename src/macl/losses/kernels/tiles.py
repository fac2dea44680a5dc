"""The tiles of an n×m matrix that is never held whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 1024
"""Side of a tile: large enough for full-speed matrix products, small enough for caches."""

KEEP = 1 << 22
"""Up to this many similarities the exponentials are kept for the backward pass; more of them when
rows are longer than 128, as computing one again takes D multiplications."""

CPU_BAND = 1 << 20
"""Entries of a band on the CPU: 4 MB in float32, which caches hold."""

ACCELERATOR_BAND = 1 << 26
"""Largest number of entries of a band elsewhere: 256 MB in float32. Fewer, larger bands launch
fewer kernels; N = 4,096 with both views is one band."""


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


def tiles(n: int, m: int, mirror: bool) -> list[Tile]:
    """All tiles, or with `mirror` those on and above the diagonal."""
    return [
        Tile(top, min(top + TILE, n), left, min(left + TILE, m))
        for top in range(0, n, TILE)
        for left in range(top if mirror else 0, m, TILE)
    ]


def bands(n: int, m: int, device: torch.device) -> list[Tile]:
    """Whole rows, as many at a time as `band_entries` allows."""
    height = max(1, band_entries(device) // max(m, 1))
    return [Tile(top, min(top + height, n), 0, m) for top in range(0, n, height)]


def band_entries(device: torch.device) -> int:
    """Entries that a band may have on this device, from its total memory (a cached property)."""
    if device.type == "cpu":
        return CPU_BAND
    if device.type == "cuda":
        # A backward pass holds about three bands of float32: 12 of every 256 bytes of memory.
        return min(ACCELERATOR_BAND, torch.cuda.get_device_properties(device).total_memory // 256)
    return ACCELERATOR_BAND


def scratch(like: Tensor, parts: list[Tile]) -> Tensor:
    """A buffer for the largest tile, used by all of them in turn."""
    return like.new_empty(max(((t.bottom - t.top) * (t.right - t.left) for t in parts), default=0))


@contextmanager
def small() -> Iterator[None]:
    """Tiles of 256 KB, and no exponentials kept, in the calls inside and their backward passes.

    For callers whose peak memory counts more than the loss' share of the time. A block of a few
    megabytes that is freed also makes glibc keep more of what others free later. Not for several
    threads at once.
    """
    global TILE, KEEP, CPU_BAND
    before = TILE, KEEP, CPU_BAND
    TILE, KEEP, CPU_BAND = 256, 0, 1 << 16
    try:
        yield
    finally:
        TILE, KEEP, CPU_BAND = before
