"""Times of a step on GPUs that are not here: grids and tiles from the code that launches them.

Nothing in here was measured. Products run at EFFICIENCY of the data sheet's peak on the
multiprocessors that are busy; a grid takes whole turns. Tiles come from the L2 cache. A loss that
stores its similarities is charged its products and BYTES_PER_ENTRY of memory traffic; our matrix
that is held once, HELD_PER_ENTRY and products in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.operator import ACCELERATOR_LIMIT
from macl.losses.ops.triton import launch as kernels

EFFICIENCY = 0.4  # of the kernels' products; between them they take exponentials
GEMM = 0.6  # of a library's products
MEMORY = 0.83
LAUNCHES = 0.1  # ms: some twenty launches of 5 µs around the products, of ours and of a peer
# bf16 autocast, eager: product w2; ·1/τ r2 w2; to float32 r2 w4; log-softmax r4 w4; backward: nll
# w4, log-softmax r4 r4 w4, to bf16 r4 w2, ·1/τ r2 w2; two products r2 r2.
BYTES_PER_ENTRY = 50
STORED_PER_ENTRY = 14  # bytes that are alive at a time
# `dense.closed`: product w4; exponentials r4 w4; sums r4; weights r4 w4; product r4.
HELD_PER_ENTRY = 28


class Chip(NamedTuple):
    """From data sheets: flop/s in half precision and in float32 without tensor cores, memory and
    (measured by others) L2 bytes/s.
    """

    name: str
    device: kernels.Device
    flops: float
    single: float
    memory: float
    cache: float


CHIPS = [
    Chip("A100", kernels.Device(80, 108), 312e12, 19.5e12, 2.04e12, 4.5e12),
    Chip("H100", kernels.Device(90, 132), 989e12, 67e12, 3.35e12, 5.5e12),
]
POSITIVES = Exclusions((0,))


class Estimate(NamedTuple):
    """ms, the splits of the columns, and the share of the multiprocessors' time that is used."""

    ms: float
    splits: int
    busy: float


def launch_time(direction: kernels.Direction, n: int, dim: int, parts: int, chip: Chip) -> Estimate:
    """One launch on both views, n rows against themselves."""
    rows = torch.empty(parts, n, dim, dtype=torch.float16, device="meta")
    tau = torch.empty((), device="meta")
    launch = kernels.plan(direction, "lse", rows, rows, POSITIVES, chip.device, scale=tau)
    tile, programs = launch.config, math.prod(launch.grid)
    tiles = launch.arguments["span"] // tile.bn
    products = 3 if parts == 2 else 1
    summed = tile.dv * (tile.chunks or 1) if direction == "backward" else 0
    flops = 2 * products * tile.bm * tile.bn * (dim + summed)
    # Rows stay where they fit; so do the columns, for the second product of a backward.
    rows_again, columns_again = tile.bd < dim, tile.chunks > 0
    loaded = tile.bn * (dim + summed * columns_again) + tile.bm * dim * rows_again
    loaded *= 2 * parts
    slots = chip.device.processors * tile.resident
    turns = math.ceil(programs / slots)
    per_slot = EFFICIENCY * chip.flops / slots
    compute = turns * tiles * flops / per_slot
    cache = programs * tiles * loaded / chip.cache
    busy = programs / (turns * slots)
    return Estimate(1e3 * max(compute, cache), launch.splits, busy)


def ours(n: int, dim: int, parts: int, chip: Chip) -> Estimate:
    """Forward and backward; splits and occupancy of the backward."""
    forward, backward = (launch_time(d, n, dim, parts, chip) for d in ("forward", "backward"))
    return backward._replace(ms=forward.ms + backward.ms + LAUNCHES)


def materialized(n: int, dim: int, chip: Chip) -> float:
    """bf16 autocast cross-entropy, ms."""
    products = 6 * n * n * dim / (GEMM * chip.flops)
    return 1e3 * (products + BYTES_PER_ENTRY * n * n / (MEMORY * chip.memory)) + LAUNCHES


def held(n: int, dim: int, chip: Chip) -> float:
    """What "auto" does up to ACCELERATOR_LIMIT similarities, ms: one matrix, two products."""
    products = 4 * n * n * dim / (GEMM * chip.single)
    return 1e3 * (products + HELD_PER_ENTRY * n * n / (MEMORY * chip.memory)) + LAUNCHES


def shown(ms: float) -> str:
    return f"{ms:.2g}" if ms < 10 else f"{ms:.0f}"


def table(dim: int, sizes: tuple[int, ...] = (512, 2048, 4096, 8192, 32768)) -> str:
    """Markdown: N by implementation, A100 / H100."""
    head = "| N | half-precision rows | float32 rows | splits, busy | held, float32 products |"
    lines = [head + " cross-entropy, materialized | stored |", "|---" * 7 + "|"]
    for size in sizes:
        n = 2 * size
        half, full = ([ours(n, dim, parts, chip) for chip in CHIPS] for parts in (1, 2))
        peer = [materialized(n, dim, chip) for chip in CHIPS]
        once = [held(n, dim, chip) for chip in CHIPS] if n * n <= ACCELERATOR_LIMIT else []
        cells = [
            " / ".join(shown(e.ms) for e in half),
            " / ".join(shown(e.ms) for e in full),
            " / ".join(f"{e.splits}, {e.busy:.0%}" for e in half),
            " / ".join(map(shown, once)) or "–",
            " / ".join(map(shown, peer)),
            f"{STORED_PER_ENTRY * n * n / 1e9:.2g} GB",
        ]
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for dim in (128, 768):
        print(f"D = {dim}\n\n{table(dim)}")
